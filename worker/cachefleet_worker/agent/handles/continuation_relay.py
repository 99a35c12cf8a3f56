"""Sends a continued prompt to the engine and relays the engine's answer as it comes.

The engine's bytes are unchanged; one member or event, ``prompt_cache``, is added with the handle to prompt and answer
together. Where the client disconnects, the handler is cancelled and the connection to the engine closed, which aborts
the request there.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from cachefleet_runtime.sse import DONE, EventSplitter, event_data
from cachefleet_worker.agent import health
from cachefleet_worker.agent.engine.tls import PLAIN, EngineTls
from cachefleet_worker.agent.handles.continuation import Plan, engine_body, succeed, told
from cachefleet_worker.agent.handles.produced_tokens import Produced, event_of, with_member
from cachefleet_worker.agent.handles.prompt_handles import Handles

log = logging.getLogger(__name__)

GENERATE_PATH: Final = "/inference/v1/generate"
_CONNECT_SECONDS: Final = 5.0
_MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
_JSON: Final = "application/json"
_TRACE_HEADERS: Final = ("X-Request-Id", "traceparent", "tracestate", "X-data-parallel-rank")


class UpstreamError(Exception):
    """The engine's answer is missing or unusable; ``code`` is the API's error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Relay:
    """Sends requests to one engine. ``corrupted`` is called where an answer's log-probabilities are not all numbers."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        handles: Handles,
        *,
        key: str,
        idle_seconds: float,
        answer_bytes: int,
        corrupted: Callable[[], None],
        tls: EngineTls = PLAIN,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._http = http
        self._url = url + GENERATE_PATH
        self._handles = handles
        self._headers = {"Content-Type": _JSON} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=idle_seconds)
        self._answer_bytes = answer_bytes
        self._corrupted = corrupted
        self._clock = clock
        self._tls = tls

    async def run(self, chosen: Plan, request: web.Request) -> web.StreamResponse:
        """The answer; a stream has been sent by then. UpstreamError where there is none."""
        began = self._clock()
        async with self._asked(chosen, request) as upstream:
            if upstream.status != 200:
                return await self._refused(upstream)
            if not chosen.request.stream:
                return await self._whole(chosen, upstream, began)
            return await self._stream(chosen, upstream, request, began)

    @asynccontextmanager
    async def _asked(self, chosen: Plan, request: web.Request) -> AsyncIterator[aiohttp.ClientResponse]:
        passed = {name: request.headers[name] for name in _TRACE_HEADERS if name in request.headers}
        try:
            upstream = await self._http.post(
                self._url,
                data=engine_body(chosen),
                headers=self._headers | passed,
                timeout=self._timeout,
                allow_redirects=False,
                ssl=self._tls.trusted.context(),
                server_hostname=self._tls.server_name,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UpstreamError("engine_unreachable", f"the engine did not answer: {type(error).__name__}") from error
        try:
            yield upstream
        finally:
            upstream.close()  # else the engine goes on producing an answer that nobody reads

    async def _refused(self, upstream: aiohttp.ClientResponse) -> web.Response:
        """The engine's own error response, unchanged."""
        content = await self._read(upstream)
        if upstream.status in (404, 405) and not content.lstrip().startswith(b'{"error"'):
            raise UpstreamError("generate_not_served", f"the engine has no {GENERATE_PATH} (--enable-scale-out)")
        return web.Response(body=content, status=upstream.status, content_type=upstream.content_type)

    async def _whole(self, chosen: Plan, upstream: aiohttp.ClientResponse, began: float) -> web.Response:
        content = await self._read(upstream)
        produced = Produced()
        produced.add(content)
        cache = self._finish(chosen, produced, began)
        try:
            content = with_member(content, "prompt_cache", cache)
        except ValueError as error:
            raise UpstreamError("engine_unreadable", "the engine's answer is no JSON object") from error
        return web.Response(body=content, content_type=_JSON)

    async def _stream(
        self, chosen: Plan, upstream: aiohttp.ClientResponse, request: web.Request, began: float
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        produced = Produced()
        try:
            async for event in self._events(upstream):
                data = event_data(event)
                if data == DONE:
                    await response.write(event_of(self._closing(chosen, produced, began)))
                elif data:
                    produced.add(data)
                await response.write(event)
        except UpstreamError as error:
            # The response has begun: its error can only be sent as an event.
            await response.write(event_of({"error": {"code": error.code, "message": str(error)}}))
        return response

    async def _events(self, upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        splitter = EventSplitter(_MAX_EVENT_BYTES)
        try:
            async for data in upstream.content.iter_any():
                for event in splitter.feed(data):
                    yield event
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise UpstreamError("engine_lost", f"the engine's answer broke off: {type(error).__name__}") from error

    def _closing(self, chosen: Plan, produced: Produced, began: float) -> dict[str, object]:
        """The last event, in the engine's form, without a choice."""
        return {"choices": [], "prompt_cache": self._finish(chosen, produced, began)}

    def _finish(self, chosen: Plan, produced: Produced, began: float) -> dict[str, object] | None:
        """The next handle; None where the answer is not whole or the handle is not kept."""
        if not health.numbers(produced.logprobs):
            self._corrupted()
            return None
        self._say(chosen, produced, began)
        if not produced.whole:
            return None
        now = self._clock()
        entry = succeed(chosen, produced.ids, self._handles, now)
        if entry is None:
            log.debug("prefix cache: snapshot failed; not cached", extra={"tokens": len(chosen.ids)})
            return None
        return dict(msgspec.to_builtins(told(entry, now)))

    def _say(self, chosen: Plan, produced: Produced, began: float) -> None:
        tokens, reused = len(chosen.ids), produced.cached_tokens
        if reused:
            fields = {"reused_tokens": reused, "prompt_tokens": tokens}
            log.info("prefix cache: hit - skipping prefill of cached prefix", extra=fields)
        elapsed = round((self._clock() - began) * 1000)
        log.info("prefill complete", extra={"prompt_tokens": tokens, "reused": reused, "elapsed_ms": elapsed})

    async def _read(self, upstream: aiohttp.ClientResponse) -> bytes:
        content = bytearray()
        try:
            async for data in upstream.content.iter_any():
                content += data
                if len(content) > self._answer_bytes:
                    raise UpstreamError("engine_unreadable", f"an answer of more than {self._answer_bytes} bytes")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UpstreamError("engine_lost", f"the engine's answer broke off: {type(error).__name__}") from error
        return bytes(content)
