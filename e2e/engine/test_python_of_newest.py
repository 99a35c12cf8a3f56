"""The plugin on the scheduler, block pool and request types of a vLLM that has no CPU build: its Python as published.

The tests of ``tests/worker/plugin`` that import vLLM run once more, in a process where that version is the one found.
Some are of that version alone: hashes of blocks that cover the tokens after them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from e2e.engine.versions import IN_PYTHON, python_path

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 900.0
WHOLE: Final = "tests/worker/plugin"
HITS: Final = (f"{WHOLE}/test_hit_rule_pool.py", f"{WHOLE}/snapshot/test_block_identity_pool.py", "-k", "predict")
"""What is predicted is what that version serves, with hashes that look ahead and without."""
OTHER_VERSIONS: Final = f"{WHOLE}/tokens/test_renderer_versions.py"
"""Starts engines of versions of its own."""


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    ("tests", "least"), [(HITS, 60), pytest.param((WHOLE,), 400, marks=pytest.mark.slow)], ids=["hits", "all"]
)
def test_the_plugins_tests_pass_on_the_newest_vllms_own_classes(
    tmp_path: Path, tests: tuple[str, ...], least: int
) -> None:
    """At least so many: fewer would mean that they were skipped, not tried."""
    environment = {**os.environ, **python_path(IN_PYTHON, tmp_path)}
    options = ["-q", "-m", "engine", "-p", "no:cacheprovider", "-p", "no:xdist", "--ignore", OTHER_VERSIONS]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert run.returncode == 0, run.stdout[-20_000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed, run.stdout[-2000:]
    assert int(passed[1]) >= least, passed[0]


def test_it_is_that_versions_classes_that_are_found(tmp_path: Path) -> None:
    says = (
        "from vllm.v1.core.block_pool import BlockPool as B; import vllm.v1.core as core;"
        " print(core.__file__, 'num_hash_lookahead_tokens' in B.__init__.__annotations__)"
    )
    environment = {**os.environ, **python_path(IN_PYTHON, tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", says], env=environment, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert run.stdout.split()[-2:][1] == "True", run.stdout
    assert IN_PYTHON in run.stdout
