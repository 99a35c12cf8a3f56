"""Exports as JSON lines: read page by page, so that no more than one page is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from pydantic import BaseModel
from starlette.responses import StreamingResponse

MEDIA_TYPE: Final = "application/jsonl"
PAGE: Final = 20
"""Records that are read and shown at once: what else this process does waits for so many."""
IN_JSON_LINES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "One JSON object a line, the last first",
        "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}


class Named(Protocol):
    """A record with an id."""

    @property
    def id(self) -> str:
        """Unique among all records of its kind."""
        ...


R = TypeVar("R", bound=Named)


async def json_lines(
    read: Callable[[int, str | None], Awaitable[Sequence[R]]], shown: Callable[[R], BaseModel], *, limit: int
) -> StreamingResponse:
    """At most ``limit`` records as ``shown``; ``read`` gives so many of those before an id.

    An error of the first ``read`` is raised; one later cuts the answer off, so that its end is not taken for the end.
    """
    first = await read(min(PAGE, limit), None)
    return StreamingResponse(_lines(first, read, shown, limit=limit), media_type=MEDIA_TYPE)


async def _lines(
    page: Sequence[R],
    read: Callable[[int, str | None], Awaitable[Sequence[R]]],
    shown: Callable[[R], BaseModel],
    *,
    limit: int,
) -> AsyncIterator[str]:
    while page:
        yield "".join(shown(record).model_dump_json(by_alias=True) + "\n" for record in page)
        limit -= len(page)
        await asyncio.sleep(0)
        page = await read(min(PAGE, limit), page[-1].id) if limit > 0 else ()
