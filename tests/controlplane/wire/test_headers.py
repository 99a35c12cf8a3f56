"""Headers on their way through, to the worker and back."""

import asyncio
import json

import pytest
from aiohttp import web
from cachefleet_native import permitted_headers, upstream_headers

from cachefleet_controlplane.wire.headers import ACCOUNT, AGENT_HEADERS, MAX_REQUEST_ID, Header, has_any, request_id
from cachefleet_core.engine.left_answers import NAME_HEADER
from tests.controlplane.gateway.harness import chat, front
from tests.controlplane.gateway.retry.test_failover import Scripted, serving


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ([], None),
        ([(b"x-request-id", b"")], None),
        ([(b"x-other", b"a"), (b"x-request-id", b"r-1 {2}"), (b"x-request-id", b"later")], "r-1 {2}"),
        ([(b"x-request-id", b"x" * MAX_REQUEST_ID)], "x" * MAX_REQUEST_ID),
        ([(b"x-request-id", b"x" * (MAX_REQUEST_ID + 1))], None),
        ([(b"x-request-id", "\u00e9".encode())], None),
        ([(b"x-request-id", b"a\x01")], None),
    ],
)
def test_a_request_id_is_remembered_where_it_is_short_and_printable(headers: list[Header], told: str | None) -> None:
    assert request_id(headers) == told


def test_any_of_some_headers_is_found_wherever_it_stands() -> None:
    given = [(b"a", b"1"), (b"b", b"2"), (b"c", b"a")]
    assert [has_any(given, frozenset(names)) for names in ({b"c"}, {b"x", b"a"}, {b"1", b"x"}, set())] == [
        *(True, True),
        *(False, False),
    ]
    assert not has_any([], frozenset({b"a"}))


@pytest.mark.parametrize("name", [name for names in AGENT_HEADERS for name in names if name])
def test_names_of_agents_sessions_are_not_sent_to_workers(name: bytes) -> None:
    assert upstream_headers([(name, b"s")], key="") == upstream_headers([], key="")


def test_a_worker_gets_the_name_of_a_request_by_the_header_that_it_knows() -> None:
    assert (NAME_HEADER, "d1") in upstream_headers([(ACCOUNT, b"d1")], key="")


@pytest.mark.parametrize("name", [b"x-vllm-priority", b"x-request-id", b"x-session-id", b"x-real-ip", b"x-forwarded-a"])
def test_only_a_trusted_tenant_names_a_request_to_an_engine(name: bytes) -> None:
    headers = [(b"a", b"1"), (name, b"2")]
    assert permitted_headers(headers, trusted=True) == headers
    assert permitted_headers(headers, trusted=False) == headers[:1]


class Named(Scripted):
    """Answers with headers of one hop among its own."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        of_one_hop = {"connection": "keep-alive, X-Hop", "x-hop": "1", "proxy-connection": "x"}
        challenge = {"proxy-authenticate": "Basic"}
        named = {"x-request-id": "the-worker-s", "request-id": "the-worker-s"}
        return web.json_response({}, headers={**of_one_hop, **challenge, **named, "x-own": "kept"})


async def test_headers_of_the_worker_s_connection_stay_here() -> None:
    async with serving(Named()) as worker, front([worker]) as gate:
        status, headers, _ = await gate.post("/v1/chat/completions", chat("x"))
    assert (status, headers["x-own"]) == (200, "kept")
    assert not {"connection", "x-hop", "proxy-connection", "proxy-authenticate", "request-id"} & headers.keys()
    assert headers["x-request-id"] == headers["x-cachefleet-decision"], "the gateway names the request, not a worker"


class Acting(Scripted):
    """Answers with headers that would act for the gateway's own address."""

    def __init__(self) -> None:
        super().__init__()
        self.status = 200

    async def answer(self, request: web.Request) -> web.StreamResponse:
        acting = {"set-cookie": "a=b", "location": "http://10.0.0.1/", "access-control-allow-origin": "*"}
        ours = {"x-cachefleet-decision": "forged", "X-Cachefleet-Worker": "other", "refresh": "0; url=x"}
        return web.json_response({}, status=self.status, headers={**acting, **ours, "x-own": "kept"})


@pytest.mark.parametrize("status", [200, 302, 400])
async def test_a_worker_speaks_to_clients_for_itself_alone(status: int) -> None:
    acting = Acting()
    acting.status = status
    async with serving(acting) as worker, front([worker]) as gate:
        url = f"{gate.url}/v1/chat/completions"
        async with gate.http.post(url, json=chat("x"), headers={"origin": "x"}, allow_redirects=False) as answer:
            told = [name.lower() for name in answer.headers]
            assert answer.status == status
            assert answer.headers.getall("x-cachefleet-decision") == ["d1"]
            assert answer.headers.getall("x-cachefleet-worker") == ["demo-0"]
    assert "x-own" in told
    assert not {"set-cookie", "location", "access-control-allow-origin", "refresh"} & set(told)


class Listens(Scripted):
    """Keeps the bytes of a header."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = b""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.heard = dict(request.raw_headers)[b"x-user"]
        return web.json_response({})


async def test_a_header_in_utf_8_is_passed_on_as_it_is() -> None:
    listening, body = Listens(), json.dumps(chat("x")).encode()
    async with serving(listening) as worker, front([worker]) as gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gate.url.rsplit(":", 1)[1]))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-user: %s\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % ("Zoë".encode(), len(body)) + body)
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 30)
        writer.close()
    assert listening.heard == "Zoë".encode()
