"""Headers on their way through, to the worker and back."""

from aiohttp import web

from tests.controlplane.gateway.harness import chat, front
from tests.controlplane.gateway.test_failover import Scripted, serving


class Named(Scripted):
    """Answers with headers of one hop among its own."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        of_one_hop = {"connection": "keep-alive, X-Hop", "x-hop": "1", "proxy-connection": "x"}
        challenge = {"proxy-authenticate": "Basic"}
        return web.json_response({}, headers={**of_one_hop, **challenge, "x-own": "kept"})


async def test_headers_of_the_worker_s_connection_stay_here() -> None:
    async with serving(Named()) as worker, front([worker]) as gate:
        status, headers, _ = await gate.post("/v1/chat/completions", chat("x"))
    assert (status, headers["x-own"]) == (200, "kept")
    assert not {"connection", "x-hop", "proxy-connection", "proxy-authenticate"} & headers.keys()
