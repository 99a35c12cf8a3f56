"""Reuse changes nothing: cold, warm, chunked, preempted, with the plugin and without, on two families of models."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from cachefleet_local.models.tiny_model import tiny_model_path
from e2e.engine.load import preemptions
from e2e.engine.message_start import as_stock
from e2e.engine.models import llama_path
from e2e.engine.outputs import Output, prompts, same, say, total
from e2e.engine.requests import ANSWERED, Sent
from e2e.engine.side import Side
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm

PROMPTS: Final = 100
OUTPUTS: Final = 12
NEAR_TIES: Final = 1
"""Answers of 100 that may part where the best two tokens are within 1e-3 of each other; so far none has."""

BUSY: Final = 8
LONG: Final = 280

SMALL: Final = VllmOptions(num_blocks=64, max_batched_tokens=64, plugin=True)
"""Prompts come in up to seven chunks; eight long answers have twice the blocks there are."""
UNCACHED: Final = replace(SMALL, num_blocks=256, extra=("--no-enable-prefix-caching",))

POLICY: Final = {
    "pool": "default/outputs",
    "generation": 1,
    "preemption": "HandBack",
    "reject_below": 0.5,
    "budget_mib": 1,
}
"""In force throughout: none of these requests is marked, so nothing is refused or handed back."""

ATTEMPTS: Final = 40
"""vLLM puts tokens that a busy server could not send in time into one piece; that differs from time to time."""

_VARYING: Final = re.compile(
    r"(chatcmpl|cmpl|generate)-[\w-]+|'created(_at)?': \d+|'(request_|item_)?id': '[^']*'|'system_fingerprint': '[^']*'"
)


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    path: Callable[[], Path]


FAMILIES: Final = (Family("qwen2, ChatML", tiny_model_path), Family("llama, Llama 3 markers", llama_path))


@dataclass(frozen=True, slots=True)
class Served:
    family: Family
    server: VllmServer


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An engine with the plugin, of each family."""
    with running_vllm(SMALL, request.param.path(), tmp_path_factory.mktemp("vllm") / "vllm.log") as server:
        yield Served(request.param, server)


@pytest.fixture(scope="module", params=[FAMILIES[0], pytest.param(FAMILIES[1], marks=pytest.mark.slow)])
def controls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, ...]]:
    """Two engines that cache no prefixes: with the plugin, and without."""
    with ExitStack() as stack:
        yield tuple(
            Served(
                request.param,
                stack.enter_context(
                    running_vllm(
                        replace(UNCACHED, plugin=plugin),
                        request.param.path(),
                        tmp_path_factory.mktemp("vllm") / "vllm.log",
                    )
                ),
            )
            for plugin in (True, False)
        )


@pytest.fixture(scope="module")
def said() -> dict[str, list[Output]]:
    """What each family said to the prompts the first time it was asked, by whichever engine."""
    return {}


@pytest.mark.requirement("C17", "C18")
async def test_cold_warm_and_twice_warm(served: Served, said: dict[str, list[Output]]) -> None:
    async with talking_to(served.server) as side:
        cold: list[Output] = []
        warm: list[Output] = []
        twice: list[Output] = []
        for sent in prompts(PROMPTS, outputs=OUTPUTS):
            await side.reset()
            for outputs in (cold, warm, twice):
                outputs.append(await say(side, sent))
        assert total(cold) == 0
        assert [output.cached_tokens for output in warm] == [(output.prompt_tokens - 1) // 32 * 32 for output in warm]
        assert total(twice) == total(warm)
        assert same(warm, cold) + same(twice, cold) <= 2 * NEAR_TIES
        assert same(cold, said.setdefault(served.family.name, cold)) <= NEAR_TIES
        await nothing_failed(side)


async def test_preemption_in_between(served: Served) -> None:
    """Each answer alone; then all at once, in too few blocks; then alone again, on what the preempted left cached."""
    sent = [one for one in prompts(4 * BUSY, outputs=LONG, seed=1) if len(str(one.body)) < 1600][:BUSY]
    async with talking_to(served.server) as side:
        alone = [await say(side, one) for one in sent]
        before = await preemptions(side)
        together = list(await asyncio.gather(*(say(side, one) for one in sent)))
        assert await preemptions(side) - before >= 2
        afterwards = [await say(side, one, max_tokens=OUTPUTS) for one in sent]
        assert same(together, alone) <= NEAR_TIES
        assert same(afterwards, [output.upto(OUTPUTS) for output in alone]) <= NEAR_TIES
        await nothing_failed(side)


@pytest.mark.requirement("C20")
async def test_unchanged_where_nothing_is_cached(controls: tuple[Served, ...], said: dict[str, list[Output]]) -> None:
    answers = []
    for served in controls:
        async with talking_to(served.server) as side:
            answers.append([await say(side, sent) for sent in prompts(PROMPTS, outputs=OUTPUTS)])
    assert answers[0] == answers[1]
    assert total(answers[0]) == 0
    assert same(answers[0], said.setdefault(controls[0].family.name, answers[0])) <= NEAR_TIES


async def test_the_same_bytes_for_every_kind_of_request(controls: tuple[Served, ...]) -> None:
    """Whole bodies, key by key, of what is asked with no field of the plugin."""
    async with talking_to(controls[0].server) as ours, talking_to(controls[1].server) as stock:
        for sent in filter(settled, ANSWERED):
            expected: list[str] = []
            for _ in range(ATTEMPTS):
                expected.append(await timeless(stock, sent))
                if (got := await timeless(ours, sent)) in expected:
                    break
            else:
                assert got == expected[-1], str(sent)


def settled(sent: Sent) -> bool:
    """Whether the answer follows from the question alone."""
    drawn = isinstance(sent.body, dict) and 1 in (
        sent.body.get("temperature"),
        sent.body.get("sampling_params", {}).get("temperature"),
    )
    free = isinstance(sent.body, dict) and "sampling_params" in sent.body and "temperature" not in sent.body
    return not drawn and not free and sent.path not in ("/v1/models", "/kv_event_sources", "/version")


async def timeless(side: Side, sent: Sent) -> str:
    """The answer without ids and times; pieces of a stream in the order of their choices, which run side by side."""
    exchange = await side.send(sent.path, sent.body, method=sent.method)
    body = exchange.body
    if isinstance(body, list) and body and "choices" in body[0]:
        body = sorted(body, key=lambda piece: [choice["index"] for choice in piece["choices"]] or [99])
    if isinstance(body, list) and body and body[0].get("type") == "message_start":
        body = [as_stock(body[0]), *body[1:]]
    return _VARYING.sub("", repr((exchange.status, exchange.content_type, body)))


@asynccontextmanager
async def talking_to(server: VllmServer) -> AsyncIterator[Side]:
    """With a policy in force where the engine has the plugin."""
    async with aiohttp.ClientSession() as session:
        side = Side(server.url, server.events_endpoint, server.replay_endpoint, server.headers, session)
        if server.options.plugin:
            assert (await side.send("/v1/fleet/policy", POLICY, method="PUT")).status == 200
        yield side


async def nothing_failed(side: Side) -> None:
    """No feature of the plugin went off by a fault, or refused anything."""
    capabilities: list[dict[str, Any]] = (await side.send("/v1/fleet/capabilities", method="GET")).body["features"]
    assert not [each for each in capabilities if each["reason"].startswith("fault")]
    stats = (await side.send("/v1/fleet/stats", method="GET")).body["ranks"]["0"]
    assert not stats["faults"]
    assert not stats["counts"].get("rejected")
    assert (stats["running"], stats["waiting"]) == (0, 0)
