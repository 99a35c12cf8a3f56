from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cachefleet_worker.plugin.asgi import HttpError, Request, Response, error_response
from tests.worker.plugin.asked import Answer, Sent, ask


def echo(limit: int = 10, seconds: float = 5.0) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = Request.of(scope, receive, prefix="/v1/fleet")
        try:
            await Response(await request.body(limit, seconds=seconds)).send(send)
        except HttpError as error:
            await error_response(error).send(send)

    return app


async def test_a_body_in_parts_is_whole() -> None:
    answer = await ask(echo(), "POST", "/v1/fleet/x", body=Sent([b"abc", b"", b"de"]))
    assert (answer.status, answer.content) == (200, b"abcde")
    assert answer.headers[b"content-length"] == b"5"
    assert answer.headers[b"cache-control"] == b"no-store"


async def test_a_body_is_bounded_before_and_while_it_comes() -> None:
    assert (await ask(echo(), "POST", "/v1/fleet/x", body=b"1234567890")).status == 200
    told = Sent([b"1"])
    answer = await ask(echo(), "POST", "/v1/fleet/x", body=told, headers={"Content-Length": "9" * 40})
    assert (answer.status, answer.code, told.taken) == (413, "too_large", 0)
    assert answer.headers[b"connection"] == b"close"
    untold = Sent([b"123456"] * 9)
    assert (await ask(echo(), "POST", "/v1/fleet/x", body=untold)).status == 413
    assert untold.taken == 2, "no more is read than shows that it is too much"


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    slow = Sent([b"12"], then=lambda: asyncio.sleep(60))
    answer = await ask(echo(seconds=0.05), "POST", "/v1/fleet/x", body=slow)
    assert (answer.status, answer.code) == (408, "slow_body")


async def test_a_client_that_leaves_gets_no_further() -> None:
    async def gone() -> None: ...

    answer = await ask(echo(), "POST", "/v1/fleet/x", body=Sent([b"12"], then=gone))
    assert (answer.status, answer.code) == (400, "disconnected")


@pytest.mark.parametrize("path", ["/v1/fleet/stats", "/proxy/v1/fleet/stats"])
def test_a_path_is_what_stands_below_the_prefix(path: str) -> None:
    scope = {"method": "GET", "path": path, "headers": [], "query_string": b"a=1&b=&a=2"}
    request = Request.of(scope, Sent([]).receive, prefix="/v1/fleet")
    assert (request.path, request.query) == ("/stats", {"a": "2", "b": ""})


async def streamed(content: AsyncIterator[bytes]) -> Answer:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        with contextlib.suppress(ValueError):
            await Response(content).send(send)

    return await ask(app, "GET", "/")


async def test_a_stream_that_fails_has_no_end_and_is_closed() -> None:
    closed: list[bool] = []

    async def parts(*, fail: bool) -> AsyncIterator[bytes]:
        try:
            yield b"a"
            yield b"b"
            if fail:
                raise ValueError
        finally:
            closed.append(True)

    answer = await streamed(parts(fail=False))
    assert (answer.content, answer.whole) == (b"ab", True)
    assert b"content-length" not in answer.headers
    answer = await streamed(parts(fail=True))
    assert (answer.content, answer.whole) == (b"ab", False)
    assert closed == [True, True]
