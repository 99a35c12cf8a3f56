"""The native module ``cachefleet_native``: control plane and agent require it; the plugin prefers it to Python.

Block keys and digests are the same in either code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Literal

from cachefleet_core.block_keys import BlockKeyer
from cachefleet_core.digest import AnyDigest, Digest

MODULE: Final = "cachefleet_native"
API: Final = 8
"""Version of the native module's interface that this code is written for."""
REMEDY: Final = "build it with `make setup`, which needs cargo, or use the product's image"

Choice = Literal["auto", "native", "python"]


class NativeError(ValueError):
    """The native module cannot be used; the message says in one sentence why, and how to get one that can."""


@dataclass(frozen=True, slots=True)
class Code:
    """The classes that compute block keys and digests, and why these."""

    name: Literal["native", "python"]
    reason: str
    keyer: type[BlockKeyer] = BlockKeyer
    digest: Callable[[], AnyDigest] = Digest


PYTHON: Final = Code("python", "set so")


def native_code() -> Code:
    """The native keyer and digest. NativeError where the module cannot be used."""
    if problem := lacking():
        raise NativeError(problem)
    native = import_module(MODULE)
    keyer = import_module("cachefleet_core.native_block_keys").NativeBlockKeyer
    return Code("native", f"{MODULE} {native.__version__}", keyer, native.Digest)


def available_code() -> Code:
    """The native keyer and digest; Python's where the module cannot be used."""
    try:
        return native_code()
    except NativeError as error:
        return Code("python", str(error))


def choose(choice: Choice = "auto") -> Code:
    """The code for a setting of the control plane. NativeError for "native" where the module cannot be used."""
    if choice == "python":
        return PYTHON
    return native_code() if choice == "native" else available_code()


def lacking() -> str:
    """Why the native module cannot be used, and what to do, in one sentence; "" where it can."""
    problem = _problem()
    return f"{problem}: {REMEDY}" if problem else ""


def _problem() -> str:
    try:
        native = import_module(MODULE)
    except ModuleNotFoundError as error:
        return f"{MODULE} is not installed" if error.name == MODULE else f"{MODULE} cannot be loaded ({error})"
    except Exception as error:  # noqa: BLE001 - whatever a module that does not fit this machine raises
        return f"{MODULE} cannot be loaded ({error})"
    api = getattr(native, "API", None)
    return "" if api == API else f"{MODULE} has interface {api}, and this release needs {API}"
