"""Debian's Prometheus and its promtool, for tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def promtool(*arguments: str | Path) -> str:
    """Run promtool; what it printed. The test fails where promtool does, and is skipped where there is none."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool; on Debian: apt-get install prometheus")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
