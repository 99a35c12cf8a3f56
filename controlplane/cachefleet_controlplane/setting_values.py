"""What settings may be: in words, and checks of those that pydantic has no type for. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic.fields import FieldInfo


def is_base_url(url: str) -> bool:
    """Whether it is the address of a server, without path, query or user."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return known and not (parts.query or parts.fragment or parts.username or parts.path.strip("/"))


def allowed(info: FieldInfo) -> str:
    """What a setting may be."""
    kind: Any = info.annotation
    if choices := getattr(kind, "__args__", ()):
        texts = [repr(choice) for choice in choices if isinstance(choice, str)]
        if texts:
            return "one of " + ", ".join(texts)
    kinds = {int: "a whole number", float: "a number"}
    if kind in kinds:
        return kinds[kind] + _range(info)
    return "the path of a file" if kind is Path else "text"


def _range(info: FieldInfo) -> str:
    low = next((m.ge for m in info.metadata if hasattr(m, "ge")), None)
    high = next((m.le for m in info.metadata if hasattr(m, "le")), None)
    return f" from {low} to {high}" if low is not None else ""
