"""``Stepped`` engines for tests that do not import vLLM before they run."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import Any

from cachefleet_local.models.tiny_model import tiny_model_path


def stepped(**options: Any) -> Any:
    """A ``Stepped`` of stepped.py over the tiny model; options as there."""
    os.environ.setdefault("VLLM_PLUGINS", "")  # a test says itself what is installed, vLLM would do it as it likes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = import_module("tests.worker.plugin.stepped")
        return module.Stepped(tiny_model_path(), module.Options(**options))


def ids(seed: int, count: int) -> list[int]:
    """A prompt; two of one seed share their beginning, others share nothing."""
    return [10 + (seed * 7919 + at * 31) % 900 for at in range(count)]
