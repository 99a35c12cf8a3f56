"""What holds the index and decides over it: native where ``cachefleet_core.native`` chooses that, else its twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from cachefleet_controlplane.fleet.fleet import MakeSelector
from cachefleet_controlplane.index.protocol import BlockIndex
from cachefleet_controlplane.index.python_index import PythonIndex
from cachefleet_controlplane.selection.selection import Selector
from cachefleet_controlplane.settings import Settings, SettingsError
from cachefleet_core.native import Choice, Code, NativeError, choose


@dataclass(frozen=True, slots=True)
class Backend:
    """The chosen code, and makers of an index in it and of what decides over that index."""

    code: Code
    index: Callable[[], BlockIndex] = PythonIndex
    selector: MakeSelector = Selector


def backend(choice: Choice = "auto") -> Backend:
    """The code to use. ``native.NativeError`` for "native" where there is none that fits."""
    code = choose(choice)
    if code.name == "python":
        return Backend(code)
    index = import_module("cachefleet_controlplane.index.native_index").NativeIndex
    selector = import_module("cachefleet_controlplane.selection.native_selection").NativeSelector
    return Backend(code, index, selector)


def backend_of(settings: Settings) -> Backend:
    """The one that was asked for. SettingsError where it cannot be had."""
    try:
        return backend(settings.engine)
    except NativeError as error:
        raise SettingsError([f"CACHEFLEET_ENGINE: {error}"]) from error
