"""Which code computes block keys and holds the index: native where it is installed, else its Python twin.

``cachefleet_core.native`` decides; answers are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from cachefleet_controlplane.block_index import BlockIndex
from cachefleet_controlplane.choosing import Chooser
from cachefleet_controlplane.fleet import MakeChooser
from cachefleet_controlplane.index import PythonIndex
from cachefleet_core.blocks import BlockKeyer
from cachefleet_core.native import Choice, choose


@dataclass(frozen=True, slots=True)
class Engine:
    """Makers of an index, of keyers and of what decides over that index, and why these."""

    name: Literal["native", "python"]
    reason: str
    index: Callable[[], BlockIndex] = PythonIndex
    keyer: type[BlockKeyer] = BlockKeyer
    chooser: MakeChooser = Chooser


def engine(choice: Choice = "auto") -> Engine:
    """The code to use. ``native.NativeError`` for "native" where there is none that fits."""
    code = choose(choice)
    if code.name == "python":
        return Engine(code.name, code.reason)
    index = import_module("cachefleet_controlplane.native_index").NativeIndex
    chooser = import_module("cachefleet_controlplane.native_choosing").NativeChooser
    return Engine(code.name, code.reason, index, code.keyer, chooser)
