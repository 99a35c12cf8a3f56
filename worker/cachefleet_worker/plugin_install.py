"""``python3 -m cachefleet_worker.plugin_install TARGET``: copies the plugin to where another image's vLLM finds it.

An init container runs it into a volume that is on the PYTHONPATH of vLLM's container, whose first process
(cachefleet_core/engine/first_process.py) comes from there, too. It can be run again, also after
an interrupted run: each package is replaced as a whole, and the metadata, by which vLLM finds the plugin, comes last.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cachefleet_core.engine.first_process import PROGRAM

DISTRIBUTION: Final = "cachefleet"
NEEDED: Final = ("cachefleet_core", "cachefleet_runtime", "cachefleet_worker")
OPTIONAL: Final = ("cachefleet_native",)
METADATA: Final = ("METADATA", "entry_points.txt")

_FILE_MODE: Final = 0o644
_PROGRAM_MODE: Final = 0o755
_FOLDER_MODE: Final = 0o755
_SKIPPED: Final = shutil.ignore_patterns("__pycache__", "*.pyc")
_USAGE: Final = "usage: python3 -m cachefleet_worker.plugin_install TARGET"
_EXIT_USAGE: Final = 2


class InstallError(Exception):
    """The plugin cannot be copied; the message is for the log's reader."""


def install(target: Path) -> str:
    """Copy the packages that vLLM needs into ``target``, readable by all; returns the line to print. InstallError."""
    metadata = _distribution()
    try:
        target.mkdir(parents=True, exist_ok=True)
        _put_program(target)
        packages = [name for name in (*NEEDED, *OPTIONAL) if _copied(name, target)]
        _put(target, f"{DISTRIBUTION}-{metadata.version}.dist-info", lambda folder: _write_metadata(metadata, folder))
    except (OSError, shutil.Error) as error:
        raise InstallError(f"{target} cannot be written: {error}") from error
    return f"cachefleet {metadata.version} is in {target}: {', '.join(packages)}"


def _distribution() -> Distribution:
    try:
        return distribution(DISTRIBUTION)
    except PackageNotFoundError as error:
        raise InstallError(f"{DISTRIBUTION} is not installed here, only its files are") from error


def _copied(package: str, target: Path) -> bool:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        if package in NEEDED:
            raise InstallError(f"{package} is not installed here")
        return False
    source = Path(spec.submodule_search_locations[0])
    _put(target, package, lambda folder: _copy(source, folder))
    return True


def _copy(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder, ignore=_SKIPPED, copy_function=shutil.copyfile)


def _put_program(target: Path) -> None:
    """Copy the first process of vLLM's container, which may be running there: the file is replaced, not written to."""
    folders = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    found = shutil.which(PROGRAM, path=folders)
    if found is None:
        raise InstallError(f"{PROGRAM} is not installed here: pip install 'cachefleet[image]'")
    new = target / f".new-{PROGRAM}"
    shutil.copyfile(found, new)
    new.chmod(_PROGRAM_MODE)
    new.replace(target / PROGRAM)


def _write_metadata(metadata: Distribution, folder: Path) -> None:
    folder.mkdir()
    for name in METADATA:
        (folder / name).write_text(metadata.read_text(name) or "", encoding="utf-8")


def _put(target: Path, name: str, fill: Callable[[Path], None]) -> None:
    """Build ``target/name`` beside the old one, then rename it into place."""
    new, old = target / f".new-{name}", target / f".old-{name}"
    for leftover in (new, old):
        if leftover.exists():
            shutil.rmtree(leftover)
    fill(new)
    _open_to_all(new)
    place = target / name
    if place.exists():
        place.rename(old)
    new.rename(place)
    if old.exists():
        shutil.rmtree(old)


def _open_to_all(folder: Path) -> None:
    """Make everything readable whatever the umask: vLLM may run as another user."""
    folder.chmod(_FOLDER_MODE)
    for path in folder.rglob("*"):
        path.chmod(_FOLDER_MODE if path.is_dir() else _FILE_MODE)


def main(arguments: Sequence[str]) -> int:
    """Copy and print one line; returns the exit status, 2 where the copy failed."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(_USAGE, file=sys.stderr)  # noqa: T201 - for the person who started it
        return _EXIT_USAGE
    try:
        said = install(Path(arguments[0]))
    except InstallError as error:
        print(f"cachefleet install: {error}", file=sys.stderr)  # noqa: T201 - as above
        return _EXIT_USAGE
    print(said)  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
