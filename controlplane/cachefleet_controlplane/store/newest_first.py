"""One page of records, the last first, of which the latest still wait to be stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Protocol, TypeVar

from cachefleet_controlplane.store.store_errors import StoreError


class Named(Protocol):
    """A record with an id."""

    @property
    def id(self) -> str:
        """Unique among all records of its kind."""
        ...


R = TypeVar("R", bound=Named)


async def newest_first(
    waiting: Mapping[str, R],
    matches: Callable[[R], bool],
    read: Callable[[int, str | None], Awaitable[list[R]]],
    *,
    limit: int,
    before: str | None,
    whole: bool,
) -> list[R]:
    """At most ``limit`` records that match, those before the record ``before`` where given.

    ``waiting`` are those not stored yet by id, the first first; ``read`` gives that many stored ones before an id.
    Where it fails, only waiting ones; StoreError where ``before`` is not among these, or ``whole`` asks for all.
    """
    queued, names, held = before in waiting, list(waiting), dict(waiting)
    cursor = None if queued else before
    older = names if before is None else names[: names.index(before)] if queued else []
    found = list(islice((one for name in reversed(older) if matches(one := held[name])), limit))
    try:
        # More, as those that wait may be stored meanwhile, the newer ones, too.
        stored = await read(limit + len(names), cursor)
    except StoreError:
        if whole or cursor is not None:
            raise
        return found
    return (found + [record for record in stored if record.id not in held])[:limit]
