"""Causes of both kinds add up exactly to what was not served, while blocks go, workers restart and fail."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from cachefleet_controlplane.history.cache_history import FLEET
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.store.tenant_records import UsageRecord
from tests.controlplane.gateway.harness import MODEL, POOL, Front, engine, front
from tests.controlplane.gateway.tenancies import CHAT

RULES = "Answer what travellers ask about trains, and keep to what the timetable says. " * 4
QUESTION = "When does the next train to the sea go, and is there one that is less full on a Sunday?"
TURNS = 48


def requests(rng: random.Random) -> Iterator[dict[str, Any]]:
    """Turns of some conversations, of which some have a time in their system text that is another each time."""
    said: dict[int, list[str]] = {number: [] for number in range(4)}
    for _ in range(TURNS):
        number = rng.randrange(4)
        said[number].append(f"{QUESTION} Question {rng.randrange(999)}.")
        now = f"Now: 2026-11-{rng.randrange(10, 30)} {rng.randrange(10, 24)}:05:01. " if number % 2 else ""
        messages = [{"role": "user", "content": one} for one in said[number][-4:]]
        system = {"role": "system", "content": f"{now}{RULES} Agent {number}."}
        yield {"model": MODEL, "messages": [system, *messages], "max_tokens": rng.randint(1, 4)}


def check(record: DecisionRecord) -> None:
    """What holds of one request: causes add up to what was computed of its prompt, and those of one of them to it."""
    assert sum(one.tokens for one in record.lost) == record.prompt_tokens - (record.cached_tokens or 0)
    for one in record.lost:
        assert sum(loss.tokens for loss in one.prompt) == (one.tokens if one.cause == "first_seen" else 0)
        assert all(loss.tokens > 0 for loss in one.prompt)


def sums(records: list[DecisionRecord]) -> tuple[Counter[str], Counter[str]]:
    """Tokens by cause in the fleet, and by cause in the prompt."""
    lost, first_seen = Counter[str](), Counter[str]()
    for record in records:
        for one in record.lost:
            lost[one.cause] += one.tokens
            first_seen.update({loss.cause: 0 for loss in one.prompt})
            for loss in one.prompt:
                first_seen[loss.cause] += loss.tokens
    return lost, first_seen


def counted(gate: Front, name: str) -> Counter[str]:
    """A counter's values by cause."""
    families = gate.metrics.registry.collect()
    samples = [sample for family in families for sample in family.samples if sample.name == f"cachefleet_{name}_total"]
    return Counter({one.labels["cause"]: int(one.value) for one in samples if one.value})


async def test_both_kinds_add_up_over_evictions_restarts_and_failover() -> None:
    told: list[UsageRecord] = []
    rng = random.Random(11)
    engines = (engine(num_blocks=160), engine(num_blocks=160))
    async with engines[0] as one, engines[1] as two, front(engines, used=told.append) as gate:
        for turn, body in enumerate(requests(rng)):
            for number in (0, 1):
                gate.report(number, said={"epoch": f"e{turn // 12}"})
            if turn % 9 == 5:
                assert rng.choice([one, two]).reset_prefix_cache()
            if turn % 12 == 11:
                await rng.choice([one, two]).restart()
            if turn % 10 == 7:
                rng.choice([one, two]).fail_next(500, 1)  # the next attempt goes to the other one
            if turn % 13 == 12:
                gate.fleet.worker_failed(f"{POOL}/{gate.records[-1].worker}")
            assert (await gate.settled(CHAT, body))[0] == 200
            check(gate.records[-1])
        gate.metrics.registry.settle()
        lost, first_seen = sums(gate.records)
        assert len(gate.records) == TURNS
        assert any(len(record.attempts) > 1 for record in gate.records), "a worker failed, and another answered"
        assert {"first_seen", "evicted", "restarted", "last_block"} <= set(lost)
        assert {"time", "new", "history_dropped"} <= set(first_seen)
        assert sum(first_seen.values()) == lost["first_seen"]
        assert sum(lost.values()) == sum(one.prompt_tokens - one.cached_tokens for one in told)
        assert counted(gate, "lost_tokens") == lost
        assert counted(gate, "first_seen_tokens") == first_seen
        hour = gate.history.steps(FLEET, time.time())
        assert sum((Counter(step.lost) for step in hour), Counter[str]()) == lost
        assert sum((Counter(step.first_seen) for step in hour), Counter[str]()) == first_seen
