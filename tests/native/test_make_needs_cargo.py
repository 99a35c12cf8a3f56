"""``make setup`` and ``make check-native`` without a cargo that can build the native module."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
_OF_MAKE: Final = frozenset({"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES"})
"""Variables of the make that runs these tests."""


def make(goal: str, cargo: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What make does where ``cargo`` is this shell script."""
    (folder / "cargo").write_text(f"#!/bin/sh\n{cargo}\n")
    (folder / "cargo").chmod(0o755)
    outer = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    environment = {**outer, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = ["make", "--no-print-directory", goal, f"VENV={folder}/venv"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("goal", ["setup", "check-native"])
@pytest.mark.parametrize(
    ("cargo", "present"), [("exit 127", "none"), ("echo cargo 1.85.1 '(d73d2caf9 2024-12-31)'", "1.85.1")]
)
def test_one_sentence_says_which_cargo_is_needed_and_how_to_get_it(
    goal: str, cargo: str, present: str, tmp_path: Path
) -> None:
    done = make(goal, cargo, tmp_path)
    said, end = done.stderr.splitlines()
    assert said.startswith("setup      the native module needs cargo 1.")
    assert f" or newer, and here is {present}: apt install cargo-web (Debian), " in said
    assert end.startswith("make: *** ")
    assert done.stdout == ""
    assert not (tmp_path / "venv").exists()
