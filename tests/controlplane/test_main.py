"""``python -m cachefleet_controlplane`` where native code cannot be used."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from cachefleet_core.native import API, REMEDY

RUN: Final = "import runpy; runpy.run_module('cachefleet_controlplane', run_name='__main__')"
ABSENT: Final = "import sys; sys.modules['cachefleet_native'] = None"
OTHER: Final = f"import sys, types; sys.modules['cachefleet_native'] = types.SimpleNamespace(API={API + 1})"


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        (ABSENT, "cachefleet_native is not installed"),
        (OTHER, f"cachefleet_native has interface {API + 1}, and this release needs {API}"),
    ],
)
def test_the_start_ends_with_one_sentence(before: str, problem: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"{before}\n{RUN}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stderr == f"the control plane needs native code: {problem}: {REMEDY}\n"
    assert ended.returncode == 2
    assert ended.stdout == ""
