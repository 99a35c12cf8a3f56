"""Pages of the decision log and the audit log, the last record first."""

from __future__ import annotations

from typing import Protocol, TypeVar

from cachefleet_controlplane.store.newest_first import Named

F_contra = TypeVar("F_contra", contravariant=True)
R = TypeVar("R", bound=Named)


class Log(Protocol[F_contra, R]):
    """A log that is searched by a filter."""

    async def recent(self, limit: int, wanted: F_contra, /, *, before: str | None = ..., whole: bool = ...) -> list[R]:
        """At most so many records, those before an id; StoreError where ``whole`` asks for all and the store fails."""
        ...


async def record_page(
    log: Log[F_contra, R], wanted: F_contra, *, before: str | None, limit: int
) -> tuple[list[R], str | None]:
    """A page of the records that are wanted, and ``before`` of the next one, None where there is none."""
    found = await log.recent(limit + 1, wanted, before=before)
    page = found[:limit]
    return page, page[-1].id if len(found) > limit else None
