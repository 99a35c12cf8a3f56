"""The native module ``cachefleet_native``: control plane and agent require it; the plugin prefers it to Python.

Block keys are the same in either code.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal

from cachefleet_core.block_keys import BlockKeyer

if TYPE_CHECKING:
    from cachefleet_native import Digest

MODULE: Final = "cachefleet_native"
API: Final = 17
"""Version of the native module's interface that this code is written for."""
REMEDY: Final = "build it with `make setup`, which needs cargo, or use the product's image"


class NativeError(ValueError):
    """The native module cannot be used; the message says in one sentence why, and how to get one that can."""


@dataclass(frozen=True, slots=True)
class Code:
    """The class that computes block keys, and why this one."""

    name: Literal["native", "python"]
    reason: str
    keyer: type[BlockKeyer] = BlockKeyer


PYTHON: Final = Code("python", "set so")


def native_code() -> Code:
    """The native keyer. NativeError where the module cannot be used."""
    native = _module()
    keyer = import_module("cachefleet_core.native_block_keys").NativeBlockKeyer
    return Code("native", f"{MODULE} {native.__version__}", keyer)


def available_code() -> Code:
    """The native keyer; Python's where the module cannot be used."""
    try:
        return native_code()
    except NativeError as error:
        return Code("python", str(error))


def empty_digest() -> Digest:
    """The digest of no blocks. NativeError where the module cannot be used."""
    digest: Digest = _module().Digest()
    return digest


def lacking() -> str:
    """Why the native module cannot be used, and what to do, in one sentence; "" where it can."""
    problem = _problem()
    return f"{problem}: {REMEDY}" if problem else ""


def _module() -> ModuleType:
    if problem := lacking():
        raise NativeError(problem)
    return import_module(MODULE)


def _problem() -> str:
    try:
        native = import_module(MODULE)
    except ModuleNotFoundError as error:
        return f"{MODULE} is not installed" if error.name == MODULE else f"{MODULE} cannot be loaded ({error})"
    except Exception as error:  # noqa: BLE001 - whatever a module that does not fit this machine raises
        return f"{MODULE} cannot be loaded ({error})"
    api = getattr(native, "API", None)
    return "" if api == API else f"{MODULE} has interface {api}, and this release needs {API}"
