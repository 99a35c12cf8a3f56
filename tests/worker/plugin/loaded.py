"""vLLM brought into this process only by the tests that need it: its import takes seconds and warns."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

BLOCK = 4
"""Tokens in a block of the test engines."""
BLOCKS_PER_MIB = 4


def engine(*kinds: str, **options: Any) -> Any:
    """An ``Engine`` of engine_blocks.py with one KV cache group of each kind: full, sliding, mamba."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = import_module("tests.worker.plugin.engine_blocks")
    return module.Engine(*(getattr(module, kind)() for kind in kinds), **options)


def prompt(name: int, blocks: int) -> list[int]:
    """A prompt of full blocks; two prompts of one name share their beginning."""
    return [name * 1000 + at for at in range(blocks * BLOCK)]
