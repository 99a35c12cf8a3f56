"""Why prompts are new, told by a gateway before fake engines: records, history, metric and ledger say the same."""

from __future__ import annotations

import time
from typing import Any

from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.history.cache_history import FLEET
from cachefleet_controlplane.prompt_causes.prompt_cause import PromptCause
from cachefleet_controlplane.store.decision_records import PromptLossRecord
from tests.controlplane.gateway.harness import BLOCK_SIZE, MODEL, POOL, Front, engine, front
from tests.controlplane.gateway.tenancies import CHAT

RULES = "Answer what travellers ask about trains, and keep to what the timetable says. " * 8
QUESTIONS = ("When does the next train to the sea go?", "And is there one that is less full on a Sunday morning?")


def body(moment: str, *questions: str, **changes: Any) -> dict[str, Any]:
    system = {"role": "system", "content": f"Now: {moment}. {RULES}"}
    said = [{"role": "user", "content": question} for question in questions]
    return {"model": MODEL, "messages": [system, *said], "max_tokens": 4} | changes


async def losses(gate: Front, sent: dict[str, Any]) -> dict[str, PromptLossRecord]:
    """The causes of one more request's first-seen tokens."""
    assert (await gate.settled(CHAT, sent))[0] == 200
    lost = {one.cause: one for one in gate.records[-1].lost}
    told = lost["first_seen"].prompt if "first_seen" in lost else ()
    assert sum(one.tokens for one in told) == (lost["first_seen"].tokens if "first_seen" in lost else 0)
    assert not [one for one in lost.values() if one.prompt and one.cause != "first_seen"]
    return {one.cause: one for one in told}


def counted(gate: Front) -> dict[str, int]:
    """By the metric, which is by the history."""
    found = {
        sample.labels["cause"]: int(sample.value)
        for family in gate.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "cachefleet_first_seen_tokens_total" and sample.value
    }
    hour: dict[str, int] = {}
    for step in gate.history.steps(FLEET, time.time()):
        assert sum(step.first_seen.values()) == step.lost.get("first_seen", 0)  # type: ignore[call-overload]  # a str
        for cause, tokens in step.first_seen.items():
            hour[cause] = hour.get(cause, 0) + tokens
    assert hour == found
    return found


async def test_a_time_that_changes_is_told_with_its_place_and_worth() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        first = await losses(gate, body("2026-11-27 09:05:01", QUESTIONS[0]))
        assert set(first) == {PromptCause.NEW}
        gate.report(0)
        told = await losses(gate, body("2026-11-27 10:15:44", *QUESTIONS))
        time_ = told[PromptCause.TIME]
        assert (time_.part, time_.role, time_.index) == ("system", "system", 0)
        same = 1 + len("system\nNow: 2026-11-27 ")  # a special token, then one a byte
        assert time_.position == same // BLOCK_SIZE * BLOCK_SIZE
        assert time_.tokens > len(RULES) * 0.9
        assert counted(gate) == {
            PromptCause.NEW: first[PromptCause.NEW].tokens + told[PromptCause.NEW].tokens,
            PromptCause.TIME: time_.tokens,
        }
        [offence] = gate.prompts.ledger.offences(POOL, time.time(), most=9)
        assert (offence.tokens, offence.place.cause) == (time_.tokens, PromptCause.TIME)
        assert 20 < offence.points < 60


async def test_turns_and_repeats_have_no_cause() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        sent = body("noon", QUESTIONS[0])
        await losses(gate, sent)
        gate.report(0)
        assert await losses(gate, sent) == {}
        gate.report(0)
        assert set(await losses(gate, body("noon", *QUESTIONS))) <= {PromptCause.NEW, PromptCause.NOT_EXAMINED}
        assert gate.prompts.ledger.offences(None, time.time(), most=9) == []


async def test_several_prompts_and_short_ones_are_not_examined() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        told = await losses(gate, {"model": MODEL, "messages": [{"role": "user", "content": "hello you there"}]})
        assert set(told) == {PromptCause.NOT_EXAMINED}


def test_a_trace_holds_no_text_of_its_prompt() -> None:
    trace = DecisionTrace("d1", 0.0, MODEL, CHAT)
    assert trace.shape is None
