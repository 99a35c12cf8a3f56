"""Which code computes block keys and holds the index: native where it is installed, else its Python twin.

This is the one place that decides; answers are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Final, Literal

from cachefleet_controlplane.index import BlockIndex, PythonIndex
from cachefleet_core.blocks import BlockKeyer

NATIVE_API: Final = 1
"""Of the native module's interface that this code is written for."""

EngineChoice = Literal["auto", "native", "python"]


class EngineError(ValueError):
    """The native code was asked for by name and cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Makers of an index and of keyers, and why these."""

    name: str
    reason: str
    index: Callable[[], BlockIndex] = PythonIndex
    keyer: type[BlockKeyer] = BlockKeyer


def engine(choice: EngineChoice = "auto") -> Engine:
    """The code to use. EngineError for "native" where there is none that fits."""
    lack = "set so" if choice == "python" else _lack()
    if not lack:
        return _native()
    if choice == "native":
        raise EngineError(lack)
    return Engine("python", lack)


def _lack() -> str:
    """Why the native code cannot be used; empty where it can."""
    if find_spec("cachefleet_native") is None:
        return "cachefleet_native is not installed"
    try:
        native = import_module("cachefleet_native")
    except ImportError as error:
        return f"cachefleet_native cannot be loaded: {error}"
    api = getattr(native, "API", None)
    return "" if api == NATIVE_API else f"cachefleet_native has interface {api}, wanted is {NATIVE_API}"


def _native() -> Engine:
    index = import_module("cachefleet_controlplane.native_index").NativeIndex
    keyer = import_module("cachefleet_core.native_blocks").NativeBlockKeyer
    version = import_module("cachefleet_native").__version__
    return Engine("native", f"cachefleet_native {version}", index, keyer)
