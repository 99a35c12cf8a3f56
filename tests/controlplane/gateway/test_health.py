"""Load balancers and load generators ask for these before anything else, and bring no key."""

import asyncio
from importlib.metadata import version

from cachefleet_controlplane.gateway.admit.request_bodies import GatewayBounds
from tests.controlplane.gateway.harness import Front, Known, engine, front
from tests.controlplane.gateway.tenancies import ACME, directory
from tests.controlplane.waiting import until

HEALTH = ("/health", "/ping")


async def told(gate: Front, path: str, method: str = "GET") -> tuple[int, bytes]:
    async with gate.http.request(method, gate.url + path) as answer:
        return answer.status, await answer.read()


async def test_they_need_no_key() -> None:
    async with front([], known=Known(directory(ACME, required=True))) as gate:
        assert (await told(gate, "/v1/models"))[0] == 401
        for path in HEALTH:
            assert await told(gate, path) == (200, b'{"status":"ok"}')
            assert await told(gate, path, "HEAD") == (200, b"")
            assert (await told(gate, path, "DELETE"))[0] == 405
        assert await told(gate, "/version") == (200, b'{"version":"%s"}' % version("cachefleet").encode())


async def test_a_full_gateway_is_alive() -> None:
    bounds = GatewayBounds(body_bytes=10_000, body_seconds=5, requests=1)
    async with engine() as worker, front([worker], bounds=bounds) as gate:
        worker.hang()
        first = asyncio.ensure_future(gate.chat("x"))
        await until(lambda: gate.gateway.under_way == 1)
        assert (await told(gate, "/v1/models"))[0] == 503
        assert {(await told(gate, path))[0] for path in HEALTH} == {200}
        worker.resume()
        assert (await first)[0] == 200
