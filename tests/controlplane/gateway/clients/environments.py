"""Environments of clients whose packages do not fit beside vLLM's, made by uv once, below the user's cache.

Each is pinned, with hashes, in a file of ``requirements/clients``; what is wanted stands in ``pyproject.toml``
(dependency groups ``client-*``), and ``make requirements`` pins it anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

PINNED: Final = Path(__file__).parents[4] / "requirements" / "clients"
INSTALL_SECONDS: Final = 1200.0
_WHOLE: Final = ".whole"
_PIN: Final = re.compile(r"^([a-z0-9-]+)==([^ ]+)", re.MULTILINE)


def python_of(name: str) -> Path:
    """The interpreter of an environment, which is made where it is missing; the test is skipped where it cannot be."""
    requirements = PINNED / f"{name}.txt"
    folder = root() / f"{name}-{_digest(requirements)}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _WHOLE).exists():
            _make(folder, requirements)
    return folder / "bin" / "python"


def root() -> Path:
    """``~/.cache/cachefleet/clients``, or where XDG_CACHE_HOME says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cachefleet" / "clients"


def pinned_versions() -> dict[str, str]:
    """The version of each package that any of the environments has."""
    return {name: version for path in sorted(PINNED.glob("*.txt")) for name, version in _PIN.findall(path.read_text())}


def _digest(requirements: Path) -> str:
    return hashlib.sha256(sys.version.encode() + requirements.read_bytes()).hexdigest()[:16]


def _make(folder: Path, requirements: Path) -> None:
    uv = str(Path(sys.executable).parent / "uv")
    shutil.rmtree(folder, ignore_errors=True)
    # --no-deps: the file has all that is needed, and not what was left out of it.
    install = ["--no-deps", "--require-hashes", "-r", str(requirements)]
    try:
        _run(uv, "venv", "--quiet", "--python", sys.executable, str(folder))
        _run(uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *install)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip()[-400:]
        pytest.skip(f"the clients of requirements/clients/{requirements.name} cannot be installed here: {said}")
    (folder / _WHOLE).touch()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=INSTALL_SECONDS, capture_output=True, text=True)
