"""``python -m cachefleet_controlplane``: where native code cannot be used; garbage collection once it serves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from cachefleet_controlplane.wiring.replica_process import GARBAGE
from cachefleet_core.native import API, REMEDY
from tests.controlplane.replicas import write_files

RUN: Final = "import runpy; runpy.run_module('cachefleet_controlplane', run_name='__main__')"
ABSENT: Final = "import sys; sys.modules['cachefleet_native'] = None"
OTHER: Final = f"import sys, types; sys.modules['cachefleet_native'] = types.SimpleNamespace(API={API + 1})"


SERVES: Final = "import gc, uvloop; uvloop.run = lambda work: (work.close(), print(gc.isenabled(), gc.get_threshold()))"
"""Tells of the collector instead of serving."""


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


def test_garbage_is_looked_for_once_it_serves(tmp_path: Path) -> None:
    """Not before, while modules are imported."""
    told = write_files(tmp_path, {}) | {"DATA_DIR": str(tmp_path), "GATEWAY_PORT": "0", "INTERNAL_PORT": "0"}
    environment = os.environ | {f"CACHEFLEET_{name}": value for name, value in told.items()}
    ended = subprocess.run(
        [sys.executable, "-c", f"{SERVES}\n{RUN}"], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.stdout == f"True {GARBAGE}\n", ended.stderr
