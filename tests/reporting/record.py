"""``.results/durations.json``: of each tier the latest run, with how long every test took."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

FOLDER: Final = Path(".results")
"""From the repository's root, where `make` runs."""
FILE: Final = "durations.json"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """How one run of a tier ended: seconds in all and by test, which tests failed, how many were skipped and why."""

    seconds: float
    budget: float
    passed: int = 0
    failed: tuple[str, ...] = ()
    skipped: dict[str, int] = {}
    tests: dict[str, float] = {}


def read(folder: Path) -> dict[str, Run]:
    """The latest run of each tier; nothing where there was none, or where the file is of another version of this."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=dict[str, Run])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def keep(folder: Path, tier: str, run: Run) -> None:
    """Replace what is known of a tier; other tiers stay, those that end at the same time too."""
    with _locked(folder):
        _write(folder, {**read(folder), tier: run})


def forget(folder: Path, tier: str) -> None:
    """Before a tier starts: one that ends too early leaves nothing, and not the run before."""
    with _locked(folder):
        _write(folder, {name: run for name, run in read(folder).items() if name != tier})


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(folder: Path, runs: dict[str, Run]) -> None:
    rounded = {name: _rounded(run) for name, run in sorted(runs.items())}
    whole = msgspec.json.format(msgspec.json.encode(rounded), indent=1)
    half = folder / f".{FILE}.{os.getpid()}"
    half.write_bytes(whole + b"\n")
    half.replace(folder / FILE)


def _rounded(run: Run) -> Run:
    tests = {name: round(seconds, 3) for name, seconds in run.tests.items()}
    return msgspec.structs.replace(run, seconds=round(run.seconds, 1), tests=tests)
