"""What a person types to see a failure again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

PYTEST: Final = ".venv/bin/pytest"
CHANGES_TESTS: Final = ("HYPOTHESIS_PROFILE",)
"""Variables on which it depends what a test does."""


def alone(test: str, *, seed: int | None, environment: Mapping[str, str]) -> str:
    """Run one test as it ran before; without a seed the order was the files' own."""
    variables = [f"{name}={environment[name]}" for name in CHANGES_TESTS if environment.get(name)]
    order = ["-p", "no:randomly"] if seed is None else [f"--randomly-seed={seed}"]
    return shlex.join([*variables, PYTEST, "-q", test, *order])


def again(target: str, *, seed: int) -> str:
    """Run a whole tier in the order of a seed."""
    return f"PYTEST_ADDOPTS=--randomly-seed={seed} make {target}"
