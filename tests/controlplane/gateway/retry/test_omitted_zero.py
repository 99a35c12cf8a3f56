"""Counts of cached tokens that are 0: told by default, left out where the pool says so, in every form of an answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from cachefleet_native import without_zero_counts

from cachefleet_controlplane.pools.source import PoolView
from tests.controlplane.gateway.converse.talk import STORED
from tests.controlplane.gateway.harness import MODEL, Front, engine, front, pool
from tests.controlplane.gateway.responses_socket.sockets import connected, respond
from tests.controlplane.waiting import until
from tests.fakes.engine import FakeEngine

TEXT = "the same long beginning of every prompt " * 3
USAGE = {"stream_options": {"include_usage": True}}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 12, "ignore_eos": True}
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"stream": True} | USAGE),
    (
        "/v1/chat/completions",
        CHAT | {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    ("/v1/completions", {"prompt": TEXT, "max_tokens": 4}),
    ("/v1/completions", {"prompt": [TEXT, "b" + TEXT], "max_tokens": 4}),
    ("/v1/completions", {"prompt": TEXT, "max_tokens": 4, "stream": True} | USAGE),
    ("/v1/responses", {"input": TEXT, "max_output_tokens": 4}),
    ("/v1/responses", {"input": TEXT, "max_output_tokens": 4, "stream": True}),
    ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 4}),
    ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 4, "stream": True}),
]


@asynccontextmanager
async def omitting(*engines: FakeEngine, omit: bool = True) -> AsyncIterator[Front]:
    async with front(engines) as gate:
        declared = pool(continuation=STORED)
        hit = declared.spec.hit.model_copy(update={"omit_zero_cached_tokens": omit})
        spec = declared.spec.model_copy(update={"hit": hit})
        gate.fleet.update_pools([PoolView(declared.model_copy(update={"spec": spec}), gate.endpoints())])
        yield gate


def usages(body: bytes) -> Iterator[dict[str, Any]]:
    """Every usage in an answer."""
    parts = body.split(b"\n\n") if not body.startswith(b"{") else [b"data: " + body]
    for part in parts:
        data = part.rpartition(b"data: ")[2]
        if data and data != b"[DONE]":
            told = json.loads(data)
            for holder in (told, told.get("response") or {}, told.get("message") or {}):
                if isinstance(holder, dict) and holder.get("usage"):
                    yield holder["usage"]


def cached(usage: dict[str, Any]) -> list[int]:
    """The counts of cached tokens in a usage."""
    details = [usage[name] for name in ("prompt_tokens_details", "input_tokens_details") if usage.get(name)]
    told = [one["cached_tokens"] for one in details if "cached_tokens" in one]
    return [*told, *([usage["cache_read_input_tokens"]] if "cache_read_input_tokens" in usage else [])]


def totals(usage: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in usage.items() if type(value) is int and "cache" not in name}


@pytest.mark.parametrize(("path", "body"), FORMS)
async def test_a_zero_is_left_out_and_all_else_stays(path: str, body: dict[str, Any]) -> None:
    told = {}
    for omit in (False, True):
        async with engine() as worker, omitting(worker, omit=omit) as gate:
            for turn in ("cold", "warm"):
                status, _, answer = await gate.post(path, {"model": MODEL} | body)
                assert status == 200, answer
                told[omit, turn] = list(usages(answer))
            await until(lambda: len(gate.records) == 2)
            assert gate.records[0].cached_tokens == 0, "what is left out is known here"
    zeros, none = ([cached(usage) for usage in told[omit, "cold"]] for omit in (False, True))
    assert [0] in zeros
    assert not any(none)
    assert not any("prompt_tokens_details" in usage or "input_tokens_details" in usage for usage in told[True, "cold"])
    for turn in ("cold", "warm"):
        assert [totals(usage) for usage in told[True, turn]] == [totals(usage) for usage in told[False, turn]]
    assert told[True, "warm"] == told[False, "warm"]
    assert cached(told[True, "warm"][-1])[0] > 0


async def test_over_a_websocket_too() -> None:
    async with engine() as worker, omitting(worker) as gate, connected(gate) as socket:
        cold = await respond(socket, TEXT)
        warm = await respond(socket, TEXT)
    assert ("input_tokens_details" in cold["usage"], warm["usage"]["input_tokens_details"]["cached_tokens"] > 0) == (
        False,
        True,
    )


async def resumed(gate: Front, text: str) -> dict[str, Any]:
    """The usage of a stream that one engine begins and the other ends."""
    body = {"model": MODEL, "stream": True, "return_token_ids": True} | CHAT | USAGE
    body |= {"messages": [{"role": "user", "content": text}]}
    first = (await gate.gateway.explain(json.dumps(body).encode())).worker
    began = gate.engines[int(first.removeprefix("demo-"))]
    assert isinstance(began, FakeEngine)
    began.cut_next_stream(4)
    before = len(gate.records)
    _, _, answer = await gate.post("/v1/chat/completions", body)
    await until(lambda: len(gate.records) > before)
    assert [attempt.outcome for attempt in gate.records[-1].attempts] == ["cut_off", "finished"]
    return list(usages(answer))[-1]


@pytest.mark.parametrize("omit", [False, True])
async def test_a_stream_that_another_worker_ends_tells_its_cached_tokens(*, omit: bool) -> None:
    """The first one broke off before its count; the second says what it had of the prompt, and no more."""
    async with engine() as one, engine() as two, omitting(one, two, omit=omit) as gate:
        assert cached(await resumed(gate, TEXT)) == ([] if omit else [0])
        warm = await resumed(gate, TEXT)
        assert 0 < cached(warm)[0] <= warm["prompt_tokens"]


def test_other_bytes_stay() -> None:
    usage = b'"usage":{"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":null},"n" : 1.10}'
    assert without_zero_counts(b'{"a":[1,  2],' + usage + b"}") == b'{"a":[1,  2],"usage":{"n" : 1.10}}'
    for other in (
        b'{"a":"\\"cached_tokens\\":0"}',
        b'{"usage":{"cached_tokens":0}}',
        b'{"usage":{"prompt_tokens_details":{"cached_tokens":10}}}',
        b'"cached_tokens":0',
        b"",
    ):
        assert without_zero_counts(other) == other
    event = b'event: x\ndata: {"usage":{"cache_read_input_tokens":0}}\n\n'
    assert without_zero_counts(event) == b'event: x\ndata: {"usage":{}}\n\n'
