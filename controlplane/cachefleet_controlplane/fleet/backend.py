"""Native or Python code for what costs most: block keys, index, selector and the check of JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from cachefleet_controlplane.fleet.fleet import MakeSelector, MakeTextSelector
from cachefleet_controlplane.index.protocol import BlockIndex
from cachefleet_controlplane.index.python_index import PythonIndex
from cachefleet_controlplane.selection.selection import Selector
from cachefleet_controlplane.selection.text_selection import TextSelector
from cachefleet_controlplane.wire.json_bounds import NativeExcess
from cachefleet_core.native import MODULE, Choice, Code, choose


@dataclass(frozen=True, slots=True)
class Backend:
    """Native or Python code for block keys, index, selectors and JSON bounds."""

    code: Code
    index: Callable[[], BlockIndex] = PythonIndex
    selector: MakeSelector = Selector
    text_selector: MakeTextSelector = TextSelector
    json_excess: NativeExcess | None = None


def backend(choice: Choice = "auto") -> Backend:
    """The backend to use. ``native.NativeError`` where "native" is asked for and cannot be loaded."""
    code = choose(choice)
    if code.name == "python":
        return Backend(code)
    index = import_module("cachefleet_controlplane.index.native_index").NativeIndex
    selector = import_module("cachefleet_controlplane.selection.native_selection").NativeSelector
    by_text = import_module("cachefleet_controlplane.selection.native_text_selection").NativeTextSelector
    return Backend(code, index, selector, by_text, import_module(MODULE).json_excess)
