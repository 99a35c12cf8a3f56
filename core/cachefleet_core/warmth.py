"""What is to be cached before traffic comes, which of it a worker has cached, and which it cannot: parts of reports."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from cachefleet_core.report_fields import Count, Name, Text


class Prefix(Struct, frozen=True, kw_only=True):
    """One prompt to have cached: chat messages as JSON, or token ids as little-endian u32."""

    name: Name
    messages: Annotated[bytes, Meta(max_length=1024 * 1024)] = b""
    ids: Annotated[bytes, Meta(max_length=1024 * 1024)] = b""
    salt: Text = ""
    salts: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()
    """Where given, the prompt is cached once under each of these instead of ``salt``."""
    lora: Text = ""


class WarmProblem(Struct, frozen=True, kw_only=True):
    """A warm prefix of the pool that is not cached and will not be by waiting."""

    name: Name
    kind: Annotated[str, Meta(max_length=64)]
    """TOO_LONG, REFUSED or FAILING."""
    tokens: Count = 0
    """What it takes, where it is too long."""
    limit: Count = 0
    """What there is room for."""
    attempts: Count = 0
    detail: Text = ""
    """Where it is too long the field of the pool that bounds it, else the last error; no content of a prompt."""


TOO_LONG: Final = "too_long"
REFUSED: Final = "refused"
FAILING: Final = "failing"


class Warmth(Struct, frozen=True, kw_only=True):
    """How many warm prefixes are cached in this epoch, of how many, and which failed."""

    done: Count = 0
    total: Count = 0
    failed: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    problems: Annotated[tuple[WarmProblem, ...], Meta(max_length=8)] = ()
