"""Clients that ask and do not read."""

import asyncio
import json

import pytest
from aiohttp import web

from cachefleet_controlplane.gateway.admit.request_bodies import GatewayBounds
from tests.controlplane.gateway.harness import chat, front
from tests.controlplane.gateway.retry.test_failover import FIRST, Scripted, serving
from tests.controlplane.waiting import until, value

pytestmark = pytest.mark.usefixtures("hurried")


class Floods(Scripted):
    """Says more than anybody waits for."""

    def __init__(self, told: bytes = FIRST * 100) -> None:
        super().__init__()
        self.told = told
        self.left = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            while True:
                await response.write(self.told)
        finally:
            self.left.set()


async def test_a_client_that_does_not_read_frees_its_worker() -> None:
    bounds = GatewayBounds(body_bytes=10_000, body_seconds=5, requests=10, send_seconds=0.2)
    flooding = Floods()
    async with serving(flooding) as worker, front([worker], bounds=bounds) as gate:
        body = json.dumps(chat("x", stream=True)).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", int(gate.url.rsplit(":", 1)[1]), limit=1024)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: gate.gateway.under_way == 1)
        await until(lambda: gate.gateway.under_way == 0)
        await asyncio.wait_for(flooding.left.wait(), 30)
        assert gate.fleet.view().inflight_requests == 0
        assert value(gate.metrics, "client_disconnects_total") == 1
        writer.transport.abort()
    assert [attempt.outcome for attempt in gate.records[0].attempts] == ["cancelled"]
