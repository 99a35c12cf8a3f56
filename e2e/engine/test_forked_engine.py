"""An engine forked from the process that has imported vLLM, and one with an interpreter of its own: nothing differs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
import pytest

from cachefleet_local.engine_forks.fork_client import MODULE
from e2e.engine.outputs import prompts
from e2e.engine.requests import CHAT, COMPLETION, IDS
from e2e.engine.side import Exchange, Side
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm

ENVIRONMENT: Final = (("PYTHONHASHSEED", "7"), ("VLLM_COMPUTE_NANS_IN_LOGITS", "1"))
"""The first makes vLLM's block hashes the same in every process."""
OPTIONS: Final = {
    forked: VllmOptions(plugin=True, num_blocks=40, forked=forked, environment=ENVIRONMENT) for forked in (False, True)
}
RANDOM: Final = frozenset({"id", "created", "request_id", "boot", "sequence", "events_endpoint"})
ATTEMPTS: Final = 600
PIECES: Final = ("content", "text")
MEASURED: Final = ("process_", "python_", "vllm:estimated_")
"""Metrics of the machine and the moment; of the others, sums and buckets are left out where they are of seconds."""


@pytest.fixture(scope="module")
def servers(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[VllmServer]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(running_vllm(options, tiny_model, tmp_path_factory.mktemp("vllm") / "vllm.log"))
            for options in OPTIONS.values()
        ]


@pytest.fixture
async def sides(servers: list[VllmServer]) -> Any:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:
        yield [Side(s.url, s.events_endpoint, s.replay_endpoint, s.headers, session) for s in servers]


def test_one_is_forked_and_one_is_not(servers: list[VllmServer]) -> None:
    below = [psutil.Process(server.pid).children(recursive=True) for server in servers]
    lines = [[" ".join(process.cmdline()) for process in family] for family in below]
    assert any("EngineCore" in line for line in lines[0])
    assert ["fork_client.py" in line and MODULE in line for line in lines[1]] == [True]


async def test_the_same_answers_events_and_metrics(sides: Sequence[Side]) -> None:
    """One after the other, greedy, through evictions: every byte that is not an id or a time."""
    answers = [[plain(exchange) for exchange in await conversation(side)] for side in sides]
    assert answers[0] == answers[1]
    events = [[event for batch in await side.replay() for event in batch.events] for side in sides]
    assert events[0] == events[1]
    assert {event["type"] for event in events[0]} >= {"BlockStored", "BlockRemoved"}
    metrics = [await side.metrics() for side in sides]
    assert names(metrics[0]) == names(metrics[1])
    assert counts(metrics[0]) == counts(metrics[1])
    assert sum(value for name, value in counts(metrics[0]).items() if "prefix_cache_hits_total" in name) > 0


async def test_the_same_plugin(sides: Sequence[Side]) -> None:
    documents = await capabilities(sides)
    assert documents[0] == documents[1]
    policy = {"pool": "default/demo", "uid": "u", "generation": 1, "threshold": 0.0, "budget_mib": 1}
    answers = [plain(await side.send("/v1/fleet/policy", policy, method="PUT")) for side in sides]
    assert answers[0] == answers[1]
    refused = [plain(await side.send(COMPLETION, {"prompt": IDS, "cache_hit_threshold": 0.9})) for side in sides]
    assert refused[0] == refused[1]
    assert "cache_threshold" in repr(refused[0])


async def capabilities(sides: Sequence[Side]) -> list[Any]:
    """Once both have found out the same: some of it an engine learns just after its start."""
    for _ in range(ATTEMPTS):
        documents = [plain(await side.send("/v1/fleet/capabilities", method="GET")) for side in sides]
        if documents[0] == documents[1]:
            break
        await asyncio.sleep(0.1)
    return documents


async def conversation(side: Side) -> list[Exchange]:
    """Completions and chats, whole and streamed, some of them twice, with log probabilities; a refusal; a reset."""
    exchanges = []
    for number, sent in enumerate(prompts(12, outputs=8)):
        body = {**sent.body, "stream": number % 3 == 2}
        exchanges += [await side.send(sent.path, body) for _ in range(1 + number % 2)]
    messages = [{"role": "user", "content": "What is the weather like?"}]
    chat = {"messages": messages, "max_tokens": 5, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    exchanges.append(await side.send(CHAT, chat))
    exchanges.append(await side.send(CHAT, {"messages": "none"}))
    await side.reset()
    exchanges.append(await side.send("/v1/models", method="GET"))
    exchanges.append(await side.send("/version", method="GET"))
    return exchanges


def plain(exchange: Exchange) -> tuple[int, str, Any]:
    """An answer less what is random; a stream as one chunk, since a busy vLLM may put tokens of two steps into one."""
    body = exchange.body
    streamed = exchange.content_type.startswith("text/event-stream")
    return exchange.status, exchange.content_type, _plain(functools.reduce(_joined, body) if streamed else body)


def _joined(left: Any, right: Any, name: str = "") -> Any:
    """Two values of one member in chunks that follow each other, as the member of one chunk."""
    match left, right:
        case dict(), dict():
            return {key: _joined(left.get(key), right.get(key), key) for key in left | right}
        case [dict() as one], [dict() as other] if name == "choices":
            return [_joined(one, other)]
        case list(), list() if name != "choices":
            return left + right
        case str(), str() if name in PIECES:
            return left + right
    return right or left


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {name: _plain(item) for name, item in value.items() if name not in RANDOM}
        case list():
            return [_plain(item) for item in value]
    return value


def names(metrics: dict[str, float]) -> set[str]:
    return {name for name in metrics if not name.startswith(MEASURED)}


def counts(metrics: dict[str, float]) -> dict[str, float]:
    """What is counted, not timed."""
    return {
        name: value
        for name, value in metrics.items()
        if name.startswith("vllm:")
        and not name.startswith(MEASURED)
        and name.partition("{")[0].endswith(("_total", "_count"))
    }
