"""Tenants that wait for the same workers: places, shares, their clients' patience, and what is sent ahead."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from cachefleet_controlplane.gateway.place import request_queue
from cachefleet_controlplane.gateway.place.fair_shares import CREDIT, Claim
from cachefleet_controlplane.store.tenant_records import TenantRecord
from tests.controlplane.gateway.harness import Front, Known, chat
from tests.controlplane.gateway.place.test_full_workers import (
    CHAT,
    Answer,
    ask,
    asked,
    busy,
    gate_before,
    refused,
    reporting,
    small,
)
from tests.controlplane.gateway.tenancies import ACME, KEYS, UMBRELLA, directory
from tests.controlplane.waiting import task, until, value

pytestmark = pytest.mark.usefixtures("hurried")


def of(
    gate: Front, tenant: TenantRecord, name: str, *, prompt: int = 300, max_tokens: int = 20, **headers: str
) -> asyncio.Task[Answer]:
    body = chat(f"{name:<{prompt}}", max_tokens=max_tokens)
    key = f"Bearer {KEYS[tenant.name]}"
    return asyncio.create_task(gate.post(CHAT, body, authorization=key, **headers))


async def test_where_all_places_are_taken_one_of_the_tenant_with_most_is_given_up() -> None:
    known: Any = Known(directory(ACME, UMBRELLA))
    async with (
        small(inter_token_seconds=0.02) as worker,
        gate_before(worker, known=known, queue_requests=3) as gate,
    ):
        first = of(gate, ACME, "first", prompt=200, max_tokens=200)
        await until(lambda: asked(worker) == ["first"])
        hog = []
        for number in range(3):
            hog.append(of(gate, ACME, f"hog{number}"))
            await until(lambda number=number: len(gate.queue) == number + 1)  # type: ignore[misc]
        quiet = of(gate, UMBRELLA, "quiet")
        answer = await hog[2]
        assert refused(answer)[:2] == (429, "displaced")
        assert answer[1]["x-llm-d-request-dropped-reason"] == "evicted-queue-pressure"
        (record,) = [record for record in gate.records if record.reason == "displaced"]
        assert (record.verdict, record.status, record.tenant) == ("reject", 429, "acme")
        assert record.queued_seconds is not None
        assert [status for status, _, _ in await asyncio.gather(first, quiet, *hog[:2])] == [200] * 4
        assert asked(worker)[:2] == ["first", "quiet"], "what has begun goes on, and who was sent least goes first"
        assert value(gate.metrics, "queue_wait_seconds_count", outcome="displaced") == 1


async def test_a_client_says_how_long_it_waits_and_never_longer_than_its_pools_let_it() -> None:
    async with busy(admission="{maxQueueSeconds: 1}") as (_, gate):
        body = chat(f"{'late':<300}")
        assert refused(await gate.post(CHAT, body, prefer="if-soon, wait=0"))[:2] == (429, "no_room")
        assert refused(await gate.post(CHAT, body, prefer="wait=3600"))[:2] == (429, "queue_timeout")
        for wrong in ("wait=3601", "wait=-1", "wait=1.5", "wait=soon", "wait"):
            status, _, answer = await gate.post(CHAT, body, prefer=wrong)
            error = json.loads(answer)["error"]
            assert (status, error["param"]) == (400, "prefer")
            assert "0 to 3600" in error["message"]


async def test_no_more_is_sent_ahead_than_the_pool_says_though_there_is_room() -> None:
    admission = "{maxQueueSeconds: 300, maxAheadSeconds: 0.001}"
    async with (
        small(inter_token_seconds=0.2) as worker,
        gate_before(worker, admission=admission) as gate,
        task(reporting(gate)),
    ):
        answers = [ask(gate, f"r{number}", prompt=60, max_tokens=3) for number in range(4)]
        await until(lambda: (len(asked(worker)), len(gate.queue)) == (1, 3))
        assert [status for status, _, _ in await asyncio.gather(*answers)] == [200] * 4
        assert len([record for record in gate.records if record.queued_seconds is not None]) == 3
        assert {record.verdict for record in gate.records} == {"route"}


async def test_a_tenant_under_its_share_may_be_sent_further_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "UNDER_SHARE", 1e9)
    known: Any = Known(directory(ACME, UMBRELLA))
    admission = "{maxQueueSeconds: 300, maxAheadSeconds: 0.001}"
    async with (
        small(inter_token_seconds=0.2) as worker,
        gate_before(worker, known=known, admission=admission) as gate,
        task(reporting(gate)),
    ):
        gate.queue.began(
            Claim(("default", "fake"), ACME.priority, 0.0, "acme", ACME.weight),
            worker="w",
            sequences=1,
            tokens=2 * CREDIT,
        )
        first = of(gate, ACME, "first", prompt=60)
        await until(lambda: asked(worker) == ["first"])
        hog = of(gate, ACME, "hog", prompt=60)
        await until(lambda: len(gate.queue) == 1)
        quiet = of(gate, UMBRELLA, "quiet", prompt=60)
        assert [status for status, _, _ in await asyncio.gather(first, hog, quiet)] == [200] * 3
        assert asked(worker) == ["first", "quiet", "hog"]
        assert [record.tenant for record in gate.records if record.queued_seconds is not None] == ["acme"]


async def test_while_others_use_the_fleet_a_tenant_has_no_more_under_way_on_a_worker_than_its_pool_says() -> None:
    known: Any = Known(directory(ACME, UMBRELLA))
    admission = "{maxQueueSeconds: 300, sharedRequests: 2}"
    async with (
        small(inter_token_seconds=0.05) as worker,
        gate_before(worker, known=known, admission=admission) as gate,
        task(reporting(gate)),
    ):
        line = ("default", "fake")
        gate.queue.began(
            Claim(line, ACME.priority, 0.0, "acme", ACME.weight), worker="another", sequences=9, tokens=2 * CREDIT
        )
        alone = [of(gate, ACME, f"alone{number}", prompt=60, max_tokens=3) for number in range(4)]
        await until(lambda: len(asked(worker)) == 4)
        assert not len(gate.queue), "nobody else is there"
        await asyncio.gather(*alone)
        await of(gate, UMBRELLA, "quiet0", prompt=60, max_tokens=1)
        flood = [of(gate, ACME, f"flood{number}", prompt=60, max_tokens=40) for number in range(4)]
        await until(lambda: (len(asked(worker)), len(gate.queue)) == (7, 2))
        assert (await of(gate, UMBRELLA, "quiet1", prompt=60, max_tokens=1))[0] == 200
        assert asked(worker)[-1] == "quiet1", "others go by those that wait"
        assert [status for status, _, _ in await asyncio.gather(*flood)] == [200] * 4
        queued = [record for record in gate.records if record.queued_seconds is not None]
        assert [(record.tenant, record.verdict) for record in queued] == [("acme", "route")] * 2
