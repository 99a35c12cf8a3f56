"""Counts the calls of a method."""

from __future__ import annotations

from typing import Any

import pytest


def counted_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[Any]:
    """A list to which each call of a method from now on adds the object that it was called on."""
    calls, method = list[Any](), getattr(owner, name)

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return method(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, counted)
    return calls
