"""Pages of other origins before the gateway: what a browser asks first, and what it may then read."""

from __future__ import annotations

import pytest

from tests.controlplane.gateway.harness import MODEL, Known, chat, engine, front
from tests.controlplane.gateway.tenancies import ACME, KEYS, directory

CHATS, APP = "/v1/chat/completions", "https://app.example"
PREFLIGHT = {
    "origin": APP,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-api-key,anthropic-version",
}


async def test_a_browser_is_answered_without_a_key_and_its_page_may_then_read_answers_and_errors() -> None:
    known = Known(directory(ACME))
    async with engine() as worker, front([worker], known=known, origins=[APP]) as gate:
        async with gate.http.options(gate.url + CHATS, headers=PREFLIGHT) as answer:
            assert (answer.status, await answer.read()) == (204, b"")
            assert answer.headers["access-control-allow-origin"] == APP
            assert answer.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
            assert answer.headers["vary"] == "origin"
        key = f"Bearer {KEYS[ACME.name]}"
        for stream in (False, True):
            status, headers, _ = await gate.post(CHATS, chat("x", stream=stream), origin=APP, authorization=key)
            assert (status, headers["access-control-allow-origin"]) == (200, APP)
            assert "x-cachefleet-worker" in headers["access-control-expose-headers"]
        status, headers, _ = await gate.post(CHATS, chat("x"), origin=APP)
        assert (status, headers["access-control-allow-origin"]) == (401, APP)


async def test_a_page_of_another_origin_gets_no_such_header() -> None:
    async with engine() as worker, front([worker], origins=[APP]) as gate:
        other = {"origin": "https://other.example"}
        async with gate.http.options(gate.url + CHATS, headers=PREFLIGHT | other) as answer:
            assert answer.status == 405
            assert "access-control-allow-origin" not in answer.headers
        _, headers, _ = await gate.post(CHATS, chat("x"), **other)
        assert "access-control-allow-origin" not in headers
        assert headers["vary"] == "origin"


@pytest.mark.parametrize("headers", [{}, {"origin": APP}])
async def test_without_allowed_origins_nothing_of_it_is_told(headers: dict[str, str]) -> None:
    async with engine() as worker, front([worker]) as gate:
        async with gate.http.options(gate.url + CHATS, headers=PREFLIGHT) as answer:
            assert answer.status == 405
        _, told, _ = await gate.post(CHATS, chat("x"), **headers)
        assert not {"access-control-allow-origin", "vary"} & told.keys()


async def test_listings_are_read_by_all_pages_where_all_are_allowed() -> None:
    async with (
        front([], origins=["*"]) as gate,
        gate.http.get(f"{gate.url}/v1/models", headers={"origin": "null"}) as answer,
    ):
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
        assert [one["id"] for one in (await answer.json())["data"]] == [MODEL]
