"""Why a generation ended."""

from __future__ import annotations

from enum import StrEnum


class Finish(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    HANDED_BACK = "cache_threshold"
    """By the worker plugin: the engine would have to compute it, or to compute it again."""
