"""``Prefer: if-available``: 412 where the worker that would serve a prompt holds none of it."""

from __future__ import annotations

import json

import pytest
from cachefleet_native import upstream_headers

from cachefleet_controlplane.gateway.apis.request_info import wants_cached
from cachefleet_controlplane.routing.decision import Knowledge
from tests.controlplane.gateway.harness import chat, engine, front
from tests.controlplane.gateway.retry.test_thresholds import TEXT
from tests.controlplane.gateway.roles import CHAT, nixl, split
from tests.controlplane.waiting import value


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ([b"if-available"], True),
        ([b"respond-async, If-Available; x=1"], True),
        ([b"wait=10", b"if-available"], True),
        ([b"if-available=no"], False),
        ([b"respond-async"], False),
        ([], False),
    ],
)
def test_what_is_preferred(said: list[bytes], *, wanted: bool) -> None:
    headers = [(b"prefer", one) for one in said]
    assert wants_cached(headers) == wanted
    assert [name for name, _ in upstream_headers(headers, key="")] == ["content-type", "accept-encoding"]


@pytest.mark.parametrize("stream", [False, True])
async def test_b21_cold_is_a_412_and_warm_is_served(*, stream: bool) -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        status, headers, body = await gate.post(CHAT, chat(TEXT, stream=stream), prefer="if-available")
        error = json.loads(body)["error"]
        assert (status, error["type"], error["code"]) == (412, "invalid_request_error", "not_cached")
        assert headers["x-cachefleet-decision"] == "d1"
        assert "preference-applied" not in headers
        record = gate.records[0]
        assert (record.verdict, record.reason, record.status, record.attempts) == ("reject", "not_cached", 412, ())
        assert value(gate.metrics, "admission_refusals_total", reason="not_cached") == 1
        assert not any(seen.path == CHAT for seen in one.requests)
        assert gate.fleet.view().inflight_requests == 0

        assert (await gate.chat(TEXT))[0] == 200
        gate.report(0)
        status, headers, _ = await gate.post(CHAT, chat(TEXT, stream=stream), prefer="if-available")
        assert (status, headers["preference-applied"], headers["x-cachefleet-worker"]) == (
            200,
            "if-available",
            "demo-0",
        )
        assert not any("prefer" in map(str.lower, seen.headers) for seen in one.requests)
        assert "preference-applied" not in (await gate.chat(TEXT))[1]


async def test_b21_what_is_not_known_is_not_available() -> None:
    async with engine() as one, front([one]) as gate:
        await gate.chat(TEXT)
        status, headers, _ = await gate.post(CHAT, chat(TEXT), prefer="if-available")
        assert (status, headers["x-cachefleet-knowledge"]) == (412, "load")


async def test_b21_a_text_that_was_sent_there_is_available_as_far_as_is_known() -> None:
    long = TEXT * 20
    async with engine() as one, front([one], texts=True, knowledge=Knowledge.APPROXIMATE) as gate:
        await gate.chat(long)
        status, headers, _ = await gate.post(CHAT, chat(long), prefer="if-available")
        assert (status, headers["preference-applied"]) == (200, "if-available")


async def test_b21_each_api_says_it_in_its_own_shape() -> None:
    messages = {"model": "fake", "max_tokens": 3, "messages": [{"role": "user", "content": TEXT}]}
    async with engine() as one, front([one]) as gate:
        status, _, body = await gate.post("/v1/messages", messages, prefer="if-available")
        told = json.loads(body)
        assert (status, told["type"], told["error"]["type"]) == (412, "error", "invalid_request_error")
        status, headers, _ = await gate.post("/v1/messages/count_tokens", messages, prefer="if-available")
        assert (status, "preference-applied" in headers) == (200, False)


async def test_b21_a_decode_worker_that_holds_nothing_is_not_available_either() -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        fleet.report()
        assert (await fleet.gate.post(CHAT, chat(TEXT), prefer="if-available"))[0] == 412
        assert fleet.sent("prefill-0") == fleet.sent("decode-0") == []
