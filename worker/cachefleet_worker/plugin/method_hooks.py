"""Wraps methods of vLLM's classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]


def wrap_method(owner: type[Any], name: str, wrap: Callable[[Method], Method], *, mark: str) -> None:
    """Wrap a method; an earlier wrapper with the same ``mark`` is replaced, not wrapped again."""
    present = getattr(owner, name)
    stock = getattr(present, mark, present)
    method = wrap(stock)
    setattr(method, mark, stock)
    setattr(owner, name, method)
