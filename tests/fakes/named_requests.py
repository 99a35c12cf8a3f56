"""Counts of requests that were named, by the plugin's own code: a fake engine's sequences stand for vLLM's states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Final

import msgspec
from aiohttp import web

from cachefleet_core.engine.left_answers import NAME_HEADER, LeftAsk
from cachefleet_worker.plugin.usage.left_answers import Counted, NamedRequests
from tests.fakes.scheduler import Sequence

_current: ContextVar[Counted | None] = ContextVar("fake_counted", default=None)
_NOT_FOUND: Final = 404


def note(sequence: Sequence) -> None:
    """A choice of the present request begins."""
    if (counted := _current.get()) is not None:
        detokenizer = SimpleNamespace(num_output_tokens=lambda: len(sequence.output))
        counted.states.append(
            SimpleNamespace(
                detokenizer=detokenizer,
                parent_req=SimpleNamespace(request_id=tuple(sequence.tokens[: sequence.prompt_tokens])),
                prompt_len=sequence.prompt_tokens,
                num_cached_tokens=sequence.cached_tokens,
            )
        )


@contextmanager
def counting(known: NamedRequests, request: web.Request) -> Iterator[None]:
    """Count a request that has a name."""
    name = request.headers.get(NAME_HEADER, "")
    if not name:
        yield
        return
    counted = known.begin(name.encode())
    token = _current.set(counted)
    try:
        yield
    finally:
        _current.reset(token)
        counted.end()


async def answered(known: NamedRequests, request: web.Request) -> web.Response:
    """Answer the route that tells of a request whose client has left."""
    ask = msgspec.json.decode(await request.read(), type=LeftAsk)
    counts = await known.counts(ask.name.encode())
    if counts is None:
        return web.json_response({"error": {"code": "not_found"}}, status=_NOT_FOUND)
    return web.Response(body=msgspec.json.encode(counts), content_type="application/json")
