"""Chooses the backend of block keys and digests: native where a compatible module is installed, else Python.

Keys and digests are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Literal

from cachefleet_core.block_keys import BlockKeyer
from cachefleet_core.digest import AnyDigest, Digest

MODULE: Final = "cachefleet_native"
API: Final = 7
"""Version of the native module's interface that this code is written for."""

Choice = Literal["auto", "native", "python"]


class NativeError(ValueError):
    """The native backend was asked for and cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Code:
    """A backend: its keyer and digest, and why it was chosen."""

    name: Literal["native", "python"]
    reason: str
    keyer: type[BlockKeyer] = BlockKeyer
    digest: Callable[[], AnyDigest] = Digest


PYTHON: Final = Code("python", "set so")


def choose(choice: Choice = "auto") -> Code:
    """The backend to use. NativeError for "native" where no compatible module is installed."""
    if choice == "python":
        return PYTHON
    lack = lacking()
    if not lack:
        return _native()
    if choice == "native":
        raise NativeError(lack)
    return Code("python", lack)


def lacking() -> str:
    """Why the native backend cannot be used, "" where it can."""
    try:
        native = import_module(MODULE)
    except ModuleNotFoundError as error:
        return f"{MODULE} is not installed" if error.name == MODULE else f"{MODULE} cannot be loaded: {error}"
    except Exception as error:  # noqa: BLE001 - whatever a module that does not fit this machine raises
        return f"{MODULE} cannot be loaded: {error}"
    api = getattr(native, "API", None)
    return "" if api == API else f"{MODULE} has interface {api}, wanted is {API}"


def _native() -> Code:
    native = import_module(MODULE)
    keyer = import_module("cachefleet_core.native_block_keys").NativeBlockKeyer
    return Code("native", f"{MODULE} {native.__version__}", keyer, native.Digest)
