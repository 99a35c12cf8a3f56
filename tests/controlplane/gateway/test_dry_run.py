"""What would be decided, in full and without consequences."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from cachefleet_controlplane.exposition import exposition
from cachefleet_controlplane.gateway.dry_run import DRY_RUN
from cachefleet_controlplane.gateway.place.fair_shares import Claim
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_core.tenancy import tenant_salt
from tests.controlplane.gateway.harness import BLOCK_SIZE, FLEET_KEY, Known, chat, engine, front
from tests.controlplane.gateway.tenancies import ACME, CHAT, KEYS, UMBRELLA, directory

LONG = "one two three four five six seven eight nine ten " * 12


def body(text: str = LONG, **changes: Any) -> bytes:
    return json.dumps(chat(text, **changes)).encode()


def chosen(record: DecisionRecord) -> list[str]:
    return [one.worker for one in record.candidates if one.chosen]


async def test_all_candidates_are_told_with_all_they_rest_on() -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine()) for _ in range(10)]
        gate = await stack.enter_async_context(front(engines))
        for number in range(10):
            gate.report(number)
        await gate.chat(LONG)
        for number in range(10):
            gate.report(number)
        record = await gate.gateway.explain(body())
        assert (record.id, record.status, record.cached_tokens, record.attempts) == (DRY_RUN, 0, None, ())
        assert (record.verdict, record.reason, record.worker) == ("route", "longest_prefix", gate.records[0].worker)
        assert (record.tenant, record.isolation, record.salt_version) == ("default", "PerTenant", 1)
        assert (record.knowledge, record.rung, record.render_failure) == ("exact", "render", None)
        assert (len(record.candidates), record.candidates_left_out) == (10, 0)
        assert chosen(record) == [record.worker]
        held = next(one for one in record.candidates if one.chosen)
        assert held.matched_tokens == held.matched_blocks * BLOCK_SIZE > 0
        assert record.predicted_tokens == held.predicted_tokens > 0


async def test_it_is_what_the_request_itself_then_gets() -> None:
    engines = [engine(), engine()]
    async with engines[0], engines[1], front(engines) as gate:
        for number in range(2):
            gate.report(number)
        dry = await gate.gateway.explain(body())
        _, told, _ = await gate.chat(LONG)
        assert told["x-cachefleet-worker"] == dry.worker
        (real,) = gate.records
        same = ("model", "endpoint", "pool", "policy", "verdict", "reason", "tenant", "prompt_tokens", "rung")
        assert [getattr(real, name) for name in same] == [getattr(dry, name) for name in same]


async def test_it_leaves_no_trace() -> None:
    engines = [engine(), engine()]
    async with engines[0], engines[1], front(engines) as gate:
        for number in range(2):
            gate.report(number)
        dry = {(await gate.gateway.explain(body())).worker for _ in range(5)}
        assert len(dry) == 1, "a decision that counted would have gone to the other one next"
        assert gate.records == []
        assert (gate.fleet.view().inflight_requests, len(gate.queue)) == (0, 0)
        assert gate.metrics.registry.get_sample_value("cachefleet_requests_in_flight") == 0
        assert "cachefleet_decisions_total{" not in exposition(gate.metrics.registry)[0].decode()
        paths = {seen.path for one in engines for seen in one.requests}
        assert paths <= {"/v1/chat/completions/render"}


async def test_who_would_have_to_wait_for_others_is_told_so() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        line = ("default", "fake")
        ticket = gate.queue.enter(Claim(line, 50, 0.0), blocks=1)
        assert ticket is not None
        record = await gate.gateway.explain(body())
        assert (record.verdict, record.reason, record.worker, chosen(record)) == ("queue", "others_first", "", [])
        assert len(gate.queue) == 1
        await gate.queue.wait(ticket, lambda: None, seconds=0)  # gives its place back


async def test_nobody_ready_is_an_answer_too() -> None:
    async with engine() as one, front([one], ready=False) as gate:
        record = await gate.gateway.explain(body())
        assert (record.verdict, record.reason, record.candidates) == ("reject", "no_ready_worker", ())


async def test_a_tenant_sees_its_own_blocks_alone() -> None:
    known = Known(directory(ACME, replace(UMBRELLA, disabled=True)))
    async with engine() as one, front([one], known=known) as gate:
        gate.report(0)
        salt = tenant_salt(FLEET_KEY.salt_key, ACME.name)
        await gate.post(CHAT, chat(LONG), authorization=f"Bearer {KEYS[ACME.name]}")
        gate.report(0, salt=salt)
        own, others = await gate.gateway.explain(body(), "acme"), await gate.gateway.explain(body(), "umbrella")
        assert (own.tenant, own.salt_version, own.predicted_tokens > 0) == ("acme", 1, True)
        assert (others.tenant, others.salt_version, others.predicted_tokens) == ("umbrella", 2, 0)
        assert salt not in repr(own)


async def test_shared_blocks_have_no_salt() -> None:
    async with engine() as one, front([one], isolation="Shared") as gate:
        record = await gate.gateway.explain(body())
        assert (record.isolation, record.salt_version) == ("Shared", None)


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        ({"prompt": "a"}, "/v1/completions"),
        ({"messages": []}, "/v1/chat/completions"),
        ({"input": "a"}, "/v1/responses"),
        ({"input": "a", "endpoint": "/v1/embeddings"}, "/v1/embeddings"),
    ],
)
async def test_the_body_tells_its_endpoint(body: dict[str, Any], endpoint: str) -> None:
    async with engine() as one, front([one]) as gate:
        record = await gate.gateway.explain(json.dumps({"model": "fake"} | body).encode())
        assert record.endpoint == endpoint


@pytest.mark.parametrize(
    ("body", "tenant", "status", "param"),
    [
        (b"[]", None, 400, None),
        (b'{"model": "other"}', None, 404, "model"),
        (b'{"endpoint": "x"}', None, 400, "endpoint"),
        (b'{"model": "fake", "prompt": "a"}', "nobody", 404, "tenant"),
    ],
)
async def test_what_cannot_be_asked_is_told(body: bytes, tenant: str | None, status: int, param: str | None) -> None:
    async with engine() as one, front([one]) as gate:
        with pytest.raises(ApiError) as error:
            await gate.gateway.explain(body, tenant)
        assert (error.value.status, error.value.param) == (status, param)
