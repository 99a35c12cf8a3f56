"""Which code computes block keys and holds the index: native where it is installed, else its Python twin.

``cachefleet_core.native`` decides; answers are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from cachefleet_controlplane.index import BlockIndex, PythonIndex
from cachefleet_core.blocks import BlockKeyer
from cachefleet_core.native import Choice, choose


@dataclass(frozen=True, slots=True)
class Engine:
    """Makers of an index and of keyers, and why these."""

    name: Literal["native", "python"]
    reason: str
    index: Callable[[], BlockIndex] = PythonIndex
    keyer: type[BlockKeyer] = BlockKeyer


def engine(choice: Choice = "auto") -> Engine:
    """The code to use. ``native.NativeError`` for "native" where there is none that fits."""
    code = choose(choice)
    return Engine(code.name, code.reason, _native_index() if code.name == "native" else PythonIndex, code.keyer)


def _native_index() -> Callable[[], BlockIndex]:
    made: Callable[[], BlockIndex] = import_module("cachefleet_controlplane.native_index").NativeIndex
    return made
