"""Runs a program beside vLLM's own parser of arguments, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def read_by_vllm(program: str, given: object, environment: Mapping[str, str]) -> dict[str, Any]:
    """What ``program`` prints as JSON after the word READ; ``given`` is its argument, as JSON."""
    run = subprocess.run(
        [sys.executable, "-c", program, json.dumps(given)],
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
        text=True,
    )
    answer = [line for line in run.stdout.splitlines() if line.startswith("READ ")]
    assert answer, run.stderr[-2000:]
    found: dict[str, Any] = json.loads(answer[0].removeprefix("READ "))
    return found
