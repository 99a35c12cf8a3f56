"""Exports as JSON lines: read page by page, so that no more than one page is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from pydantic import BaseModel
from starlette.responses import StreamingResponse

from cachefleet_controlplane.admin.answers.record_pages import F_contra, Log, R

MEDIA_TYPE: Final = "application/jsonl"
PAGE: Final = 20
"""Records that are read and shown at once: what else this process does waits for so many."""
IN_JSON_LINES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "One JSON object a line, the last first",
        "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}


async def json_lines(
    log: Log[F_contra, R], wanted: F_contra, shown: Callable[[R], BaseModel], *, limit: int
) -> StreamingResponse:
    """At most ``limit`` of the records that are wanted, the last first, as ``shown``.

    An error of the first page is raised; one later cuts the answer off, so that its end is not taken for the end.
    """
    first = await log.recent(min(PAGE, limit), wanted, whole=True)
    return StreamingResponse(_lines(first, log, wanted, shown, limit=limit), media_type=MEDIA_TYPE)


async def _lines(
    page: Sequence[R],
    log: Log[F_contra, R],
    wanted: F_contra,
    shown: Callable[[R], BaseModel],
    *,
    limit: int,
) -> AsyncIterator[str]:
    while page:
        yield "".join(shown(record).model_dump_json(by_alias=True) + "\n" for record in page)
        limit -= len(page)
        await asyncio.sleep(0)
        page = await log.recent(min(PAGE, limit), wanted, before=page[-1].id, whole=True) if limit > 0 else ()
