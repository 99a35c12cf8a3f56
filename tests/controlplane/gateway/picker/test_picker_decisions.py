"""The picker chooses the worker that the gateway chooses, for the same requests in the same order."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from bench.replay_work import TRACES
from cachefleet_controlplane.routing.decision import Knowledge
from tests.controlplane.gateway.harness import chat, engine, front
from tests.controlplane.gateway.picker.envoy_stub import CHATS, picker

RECORDED = TRACES / "mooncake" / "conversation_trace.jsonl"
WORKERS = 3


def _sessions() -> list[dict[str, Any]]:
    """Chats of which each begins as one of a few before it."""
    rng, bodies = random.Random(3), list[dict[str, Any]]()
    begun = [f"you are helper number {number}, " * 20 for number in range(5)]
    for turn in range(40):
        session = rng.randrange(len(begun))
        begun[session] += f"and in turn {turn} say {rng.random()} " * rng.randrange(1, 6)
        bodies.append(chat(begun[session], max_tokens=2))
    return bodies


def _recorded() -> list[dict[str, Any]]:
    """The first requests of a trace: equal blocks are equal texts."""
    lines = RECORDED.read_text().splitlines()[:300]
    blocks = [json.loads(line)["hash_ids"] for line in lines]
    return [
        chat("".join(f"block {one} of the trace is this text. " * 2 for one in ids), max_tokens=1) for ids in blocks
    ]


async def _compare(bodies: Sequence[dict[str, Any]], *, reported: bool) -> tuple[list[str], list[str], set[str]]:
    """Workers that the gateway and the picker have chosen, and what they knew of prompts."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine()) for _ in range(WORKERS)]
        options: dict[str, Any] = {"texts": True, "max_model_len": 1 << 20}
        if not reported:
            options["knowledge"] = Knowledge.APPROXIMATE
        gate = await stack.enter_async_context(front(engines, **options))
        other = await stack.enter_async_context(front(engines, **options))
        envoy = await stack.enter_async_context(picker(other))
        addresses = [one.url.removeprefix("http://") for one in engines]
        ours, picks, known = list[str](), list[str](), set[str]()
        for turn, body in enumerate(bodies):
            for number in range(WORKERS) if reported else ():
                waiting = (turn + number) % WORKERS * 8
                gate.report(number, waiting=waiting)
                other.report(number, waiting=waiting)
            asking, picked = await envoy.ask(body)
            _, headers, answer = await gate.post(CHATS, body)
            await asking.answered(answer)
            ours.append(headers["x-cachefleet-worker"])
            picks.append(other.name(addresses.index(picked.endpoints[0])))
            known.add(headers["x-cachefleet-knowledge"])
    return ours, picks, known


@pytest.mark.parametrize("reported", [False, True], ids=["approximate", "exact"])
async def test_every_choice_is_the_gateways(*, reported: bool) -> None:
    ours, picks, known = await _compare(_sessions()[: 12 if reported else None], reported=reported)
    assert picks == ours
    assert len(set(ours)) == WORKERS
    assert ("exact" in known) == reported


@pytest.mark.slow
@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded trace is not here")
async def test_every_choice_of_a_recorded_trace_is_the_gateways() -> None:
    ours, picks, _ = await _compare(_recorded(), reported=False)
    assert picks == ours
