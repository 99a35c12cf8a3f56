"""Pages of lists that are sorted by a name: parameters, and the page that they ask for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query

T = TypeVar("T")

MOST = 10_000
After = Annotated[
    str | None,
    Query(min_length=1, max_length=2048, description="`next` of the page before: goes on with what follows."),
]
ManyLimit = Annotated[int, Query(ge=1, le=MOST, description="How many at most.")]


def page(
    items: Sequence[T], name: Callable[[T], str], *, after: str | None, limit: int
) -> tuple[Sequence[T], str | None]:
    """At most ``limit`` items whose names, by which all are sorted, follow ``after``; the next ``after``.

    None where there is no next page.
    """
    start = 0 if after is None else bisect_right(items, after, key=name)
    shown = items[start : start + limit]
    more = start + limit < len(items)
    return shown, name(shown[-1]) if more else None
