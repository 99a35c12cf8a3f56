"""Copies of small values with changes, several times as fast as ``dataclasses.replace``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, TypeVar

T = TypeVar("T")

_READERS: Final[dict[type[Any], Callable[[Any], tuple[Any, ...]]]] = {}
"""By class: as many as there are classes."""


def copied(value: T, /, **changes: Any) -> T:
    """A copy of a dataclass that takes two fields or more, all by position; it must not be frozen."""
    kind: type[Any] = type(value)
    new: T = kind(*_fields(kind)(value))
    for name, changed in changes.items():
        setattr(new, name, changed)
    return new


def _fields(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Reads all fields of a class."""
    reader = _READERS.get(kind)
    if reader is None:
        reader = _READERS[kind] = attrgetter(*(field.name for field in fields(kind)))
    return reader
