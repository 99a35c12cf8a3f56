"""Why tokens were not served from cache, told by a whole gateway before fake engines; the sums are the engines' own.

Causes of shortfalls (``test_shortfall_records``) are tried there.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cachefleet_controlplane.capacity.pool_reuse import PoolReuses, Window
from cachefleet_controlplane.gateway.retry.prefill import PrefillAttempt
from cachefleet_controlplane.history.cache_history import FLEET, HistoryStep
from cachefleet_controlplane.routing.decision import Knowledge
from tests.controlplane.gateway.harness import BLOCK_SIZE, MODEL, POOL, Front, chat, engine, front
from tests.controlplane.gateway.roles import nixl, split
from tests.controlplane.gateway.tenancies import CHAT
from tests.controlplane.waiting import until
from tests.fakes.engine import FakeEngine

LONG = "one two three four five six seven eight nine ten " * 12
OTHER = "zero " * 80


def steps(gate: Front, pool: str = POOL) -> list[HistoryStep]:
    return gate.history.steps(pool, time.time())


def causes(gate: Front) -> dict[str, int]:
    """All that was lost so far, by the history and by the metric."""
    found: Counter[str] = Counter()
    for step in steps(gate, FLEET):
        found.update(step.lost)
    counted = {
        sample.labels["cause"]: int(sample.value)
        for family in gate.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "cachefleet_lost_tokens_total" and sample.value
    }
    assert counted == dict(found)
    return counted


async def lost(gate: Front, text: str = LONG, **changes: Any) -> dict[str, int]:
    """What one more request loses."""
    before, ended = Counter(causes(gate)), len(gate.records)
    status, _, _ = await gate.chat(text, **changes)
    assert status == 200
    await until(lambda: len(gate.records) > ended)
    told = dict(Counter(causes(gate)) - before)
    assert {one.cause: one.tokens for one in gate.records[-1].lost} == told
    return told


def whole(gate: Front) -> tuple[int, int]:
    """Of the last prompt, the tokens that an engine can serve, and those it never can."""
    tokens = gate.records[-1].prompt_tokens
    servable = (tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
    return servable, tokens - servable


async def test_first_seen_then_served_then_evicted() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        new = await lost(gate)
        servable, rest = whole(gate)
        assert servable > 3 * BLOCK_SIZE
        assert new == {"first_seen": servable, "last_block": rest}
        gate.report(0)
        assert await lost(gate) == {"last_block": rest}
        assert one.reset_prefix_cache()
        gate.report(0)
        assert await lost(gate) == {"evicted": servable, "last_block": rest}
        for pool in (POOL, FLEET):
            assert sum(step.requests for step in steps(gate, pool)) == 3


async def test_prompts_whose_blocks_are_known_reach_the_hit_curve() -> None:
    """With the blocks that may be served, and those that were."""
    reuses = PoolReuses()
    async with engine() as one, front([one], reuses=reuses) as gate:
        for _ in range(2):
            gate.report(0)
            await lost(gate)
        servable, _ = whole(gate)
        reuse = reuses.of(POOL)
        assert reuse is not None
        curve = reuse.curve(Window.RECENT, [1.0, 1e6], time.monotonic())
    assert curve.requests == pytest.approx(2, rel=0.01)
    assert curve.servable_tokens == pytest.approx(2 * servable, rel=0.01)
    assert curve.served_tokens == pytest.approx(servable, rel=0.01)
    assert curve.shares == pytest.approx([0.5 * BLOCK_SIZE / servable, 0.5], rel=0.01)


async def test_what_is_common_with_an_earlier_prompt_is_told_from_what_is_new() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        await lost(gate)
        before, _ = whole(gate)
        assert one.reset_prefix_cache()
        gate.report(0)
        told = await lost(gate, f"{LONG}{OTHER}")
        servable, rest = whole(gate)
        assert servable > before + 300
        assert told["evicted"] == pytest.approx(before, rel=0.25)
        assert told == {"evicted": told["evicted"], "first_seen": servable - told["evicted"], "last_block": rest}


async def test_restarted() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        await lost(gate)
        gate.report(0)
        await one.restart()
        gate.report(0, said={"epoch": "another"})
        told = await lost(gate)
        assert told == {"restarted": whole(gate)[0], "last_block": whole(gate)[1]}


async def test_held_elsewhere_but_busy() -> None:
    async with engine() as one, engine() as two, front([one, two]) as gate:
        gate.report(0)
        gate.report(1)
        await lost(gate)
        holder = int(gate.records[0].worker[-1])
        gate.report(holder, waiting=50, waiting_tokens=200_000, said={"epoch": "b"})
        gate.report(1 - holder, said={"epoch": "b"})
        told = await lost(gate)
        assert gate.records[-1].worker != gate.records[0].worker
        assert told == {"held_elsewhere": whole(gate)[0], "last_block": whole(gate)[1]}


async def test_stale() -> None:
    """The holder has not reported for long: its blocks are not counted on, and the other worker answers."""
    later = [0.0]
    async with engine() as one, engine() as two, front([one, two], clock=lambda: time.monotonic() + later[0]) as gate:
        gate.report(0)
        gate.report(1)
        await lost(gate)
        holder = int(gate.records[0].worker[-1])
        later[0] = 8.0
        gate.report(1 - holder, said={"epoch": "b"})
        told = await lost(gate)
        assert gate.records[-1].worker != gate.records[0].worker
        assert told == {"stale": whole(gate)[0], "last_block": whole(gate)[1]}


async def test_of_a_holder_that_takes_no_requests_it_is_held_elsewhere() -> None:
    async with engine() as one, engine() as two, front([one, two]) as gate:
        gate.report(0)
        gate.report(1)
        await lost(gate)
        holder = gate.records[0].worker
        gate.report(int(holder[-1]))
        gate.fleet.worker_failed(f"{POOL}/{holder}")
        told = await lost(gate)
        assert gate.records[-1].worker != holder
        assert told == {"held_elsewhere": whole(gate)[0], "last_block": whole(gate)[1]}


async def test_a_prompt_that_is_not_rendered() -> None:
    async with engine() as one, front([one], knowledge=Knowledge.LOAD) as gate:
        told = await lost(gate)
        assert set(told) == {"not_rendered"}
        assert told["not_rendered"] == one.worker.scheduler.counters.queries


async def test_a_prompt_of_known_text_alone_is_not_rendered() -> None:
    async with engine() as one, front([one], knowledge=Knowledge.APPROXIMATE, texts=True) as gate:
        assert set(await lost(gate)) == {"not_rendered"}


async def test_a_prompt_shorter_than_a_block_is_a_last_block() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        status, _, _ = await gate.post("/v1/completions", {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 1})
        assert status == 200
        await until(lambda: bool(gate.records))
        assert causes(gate) == {"last_block": 3}


async def test_an_engine_that_is_told_to_skip_its_cache() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        await lost(gate)
        gate.report(0)
        assert set(await lost(gate, prompt_logprobs=0)) == {"not_read"}


async def test_several_choices_count_their_prompt_once() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        told = await lost(gate, n=2)
        record = gate.records[-1]
        assert record.cached_tokens is not None
        assert sum(told.values()) == record.prompt_tokens - record.cached_tokens


async def test_a_client_that_goes_away_leaves_tokens_untold() -> None:
    async with engine(inter_token_seconds=0.05) as one, front([one]) as gate:
        async with gate.http.post(gate.url + CHAT, json=chat(LONG, stream=True, max_tokens=200)) as answer:
            await answer.content.readany()
        await until(lambda: bool(gate.records))
        assert set(causes(gate)) == {"not_told"}
        assert causes(gate)["not_told"] == gate.records[0].prompt_tokens


async def test_what_is_refused_loses_nothing() -> None:
    async with engine() as one, front([one]) as gate:
        status, _, _ = await gate.chat(LONG, max_tokens=-1)
        assert status == 400
        await gate.post("/v1/route", chat(LONG))
        await until(lambda: len(gate.records) == 2)
        assert causes(gate) == {}
        assert sum(step.failed for step in steps(gate, FLEET)) == 0, "the client's own error is none of the service"


async def test_requests_that_fail_are_counted_in_the_last_hour() -> None:
    async with engine() as one, front([one]) as gate:
        assert (await gate.chat(LONG))[0] == 200
        one.fail_next(count=20)
        assert (await gate.chat(LONG))[0] >= 500
        await until(lambda: len(gate.records) == 2)
        found = steps(gate, FLEET)
        assert (sum(step.requests for step in found), sum(step.failed for step in found)) == (1, 1)


def conversations(count: int, turns: int) -> Iterator[str]:
    """Prompts that share beginnings, and are more than two small engines keep."""
    picked = random.Random(20)
    texts = [f"{LONG if number % 2 else OTHER} {number}" for number in range(count)]
    for _ in range(turns):
        number = picked.randrange(count)
        texts[number] += f" and {picked.randrange(1000)} more" * 6
        yield texts[number]


async def test_over_many_requests_the_sums_are_those_of_the_engines() -> None:
    """Prompt and served tokens as vLLM counts them, and causes that add up to the rest."""
    engines: list[FakeEngine] = [engine(num_blocks=120), engine(num_blocks=120)]
    async with engines[0], engines[1], front(engines) as gate:
        for number, text in enumerate(conversations(6, 60)):
            for place in range(2) if number % 3 else ():
                gate.report(place)
            await lost(gate, text)
        told, counters = causes(gate), [one.worker.scheduler.counters for one in engines]
        prompt = sum(step.prompt_tokens for step in steps(gate))
        served = sum(step.served_tokens for step in steps(gate))
        assert prompt == sum(one.queries for one in counters)
        assert served == sum(one.hits for one in counters) > 0
        assert sum(told.values()) == prompt - served
        assert {"first_seen", "evicted", "last_block"} <= set(told)


async def test_of_what_a_prefill_worker_brought_over_its_own_cache_tells() -> None:
    """The answering worker counts all of it as cached."""
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        gate = fleet.gate
        fleet.report()
        new = await lost(gate)
        servable, rest = whole(gate)
        assert [attempt.kind for attempt in gate.records[-1].attempts] == ["prefill", "answer"]
        assert new == {"first_seen": servable, "last_block": rest}
        fleet.report()
        longer = await lost(gate, f"{LONG}{OTHER}")
        counters = one.worker.scheduler.counters
        prompts = sum(record.prompt_tokens for record in gate.records)
        assert (counters.queries, counters.hits) == (prompts, prompts - sum(causes(gate).values()))
        assert 0 < longer["first_seen"] < whole(gate)[0]
        assert one.reset_prefix_cache()
        fleet.report()
        assert await lost(gate) == {"evicted": servable, "last_block": rest}


async def test_a_prefill_worker_that_counts_nothing_leaves_tokens_untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefillAttempt, "_account", lambda *_: None)
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        await fleet.gate.chat(LONG)
        record = fleet.gate.records[-1]
        assert [(lost.cause, lost.tokens) for lost in record.lost] == [("not_told", record.prompt_tokens)]
