"""The dashboards' queries over a fleet of real vLLM, which a real Prometheus watches."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from e2e.console.prometheus import Prometheus, Target, prometheus
from e2e.console.shown_panels import Answers, ask
from e2e.engine.fleet import Up, running_up, until
from tests.chart.dashboards import Query, boards

pytestmark = [pytest.mark.engine, pytest.mark.slow]

POOL = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {name: watched}
spec:
  model: {name: tiny, source: cachefleet/tiny, weightsMiB: 2, kvBytesPerToken: 512}
  replicas: 2
  engine: {maxModelLen: 1024, dtype: float32}
  device: {resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: 508}
  prefixCache: {budgetMiB: 1}
  hit: {objective: {ratio: 0.5, windowSeconds: 60, minTokens: 100}}
"""
SECONDS = 60.0
"""Until what is not shown is missing."""
TALKS = 8
TURNS = 4
EMPTY = {
    ("fleet: Requests: Refused", "tenant: {{reason}}"): "there is no tenant with limits",
    ("fleet: Decisions: Prefill on other workers", "{{outcome}}"): "no worker has the role Prefill",
    ("fleet: Decisions: No block keys", "not asked: {{reason}}"): "all requests are chats",
    ("fleet: Conversations: Handles", "{{outcome}}"): "the pool does not ask for handles",
    ("fleet: Conversations: Handles", "refused: {{code}}"): "the pool does not ask for handles",
    ("fleet: Control plane: Reports not taken", "malformed: {{reason}}"): "no agent sends malformed frames",
    ("fleet: Control plane: Store, in trouble", "errors {{kind}}"): "the store does not fail",
    ("fleet: Control plane: Unexpected errors", "pools: {{kind}}"): "the file of pools does not fail",
    ("workers: Agents: Caches begun anew", "{{pod}} {{cause}}"): "no engine ends",
    ("workers: Agents: Prefixes warmed", "{{outcome}}"): "the pool has no warm prefixes",
    ("workers: Agents: Features that are off", "{{pod}} {{feature}}"): "all features are on with this vLLM",
}
"""Queries by panel and legend that have nothing to show of this fleet, and why."""
BY_CHANCE = {
    ("fleet: Requests: Refused", "{{reason}}"),
    ("fleet: Requests: Wait for room", "p50 {{outcome}}"),
    ("fleet: Requests: Wait for room", "p95 {{outcome}}"),
    ("fleet: Decisions: Less cached than predicted", "{{cause}}"),
    ("fleet: Decisions: No block keys", "{{reason}}"),
    ("fleet: Decisions: Tried elsewhere", "{{reason}}"),
    ("fleet: Control plane: Reports", "resync {{reason}}"),
    ("fleet: Control plane: Reports not taken", "{{reason}}"),
}
"""What only a busy machine makes happen."""
COUNTS = {
    "queried": ("sum(cachefleet_worker_prefix_queried_tokens_total)", "sum(vllm:prefix_cache_queries_total)"),
    "found": ("sum(cachefleet_worker_prefix_hit_tokens_total)", "sum(vllm:prefix_cache_hits_total)"),
    "served from cache": ("sum(cachefleet_cached_tokens_total)", "sum(vllm:prefix_cache_hits_total)"),
    "prompts": ("sum(cachefleet_prompt_tokens_total)", "sum(vllm:prompt_tokens_total)"),
}
"""Our numbers, and vLLM's own."""


def talk(up: Up, number: int) -> None:
    """One conversation, streamed; the beginning is every conversation's."""
    messages = [{"role": "system", "content": "You answer questions about reports. " * 12}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Talk {number}, question {turn}: what does it say? " * 4})
        body = {"model": "tiny", "messages": messages, "max_tokens": 8, "stream": True}
        headers = {"content-type": "application/json", "x-cachefleet-session": f"talk-{number}"}
        address = f"{up.gateway}/v1/chat/completions"
        request = urllib.request.Request(address, json.dumps(body).encode(), headers)  # noqa: S310 - ours
        with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310 - ours
            answer.read()
        messages.append({"role": "assistant", "content": "It says little."})


def targets(up: Up) -> list[Target]:
    """Control plane, agents and engines."""
    ports = [agent.environ()["CACHEFLEET_HTTP_PORT"] for agent in up.below("cachefleet_worker.agent")]
    agents = [Target("agents", f"agent-{port}", f"127.0.0.1:{port}") for port in ports]
    engines = [Target("engines", each["name"], urlsplit(each["url"]).netloc) for each in up.workers()]
    return [Target("controlplane", "controlplane-0", urlsplit(up.internal).netloc), *agents, *engines]


def name(query: Query) -> tuple[str, str]:
    return query.panel, query.legend


def answers(watching: Prometheus, begin: float) -> Answers:
    """Of the dashboards that are about this fleet; there is no operator."""
    shown = [board for board in boards() if board.name != "operator"]
    return {query: found for board in shown for query, found in ask(watching, board, begin, time.time()).items()}


def missing(found: Answers) -> list[Query]:
    return [query for query, seen in found.items() if not seen and name(query) not in EMPTY.keys() | BY_CHANCE]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Answers]]:
    folder = tmp_path_factory.mktemp("watched")
    (folder / "pool.yaml").write_text(POOL)
    with running_up(folder / "pool.yaml", folder) as up:
        until(lambda: up.live(2), 60, "both workers' reports", up)
        with prometheus(folder, targets(up)) as watching:
            yield watching, _asked(up, watching)


def _asked(up: Up, watching: Prometheus) -> Answers:
    """The answers once nothing is missing, or SECONDS after the first requests."""
    begin, deadline = time.time(), time.monotonic() + SECONDS
    with ThreadPoolExecutor(4) as pool:
        while True:
            list(pool.map(lambda number: talk(up, number), range(TALKS)))
            found = answers(watching, begin)
            if not missing(found) or time.monotonic() > deadline:
                return found


def test_every_panel_shows_something_of_real_engines(watched: tuple[Prometheus, Answers]) -> None:
    watching, found = watched

    assert missing(found) == []
    assert {name(query) for query, seen in found.items() if seen} & EMPTY.keys() == set()
    assert EMPTY.keys() | BY_CHANCE <= {name(query) for query in found}
    assert set(watching.targets().values()) == {"up"}


@pytest.mark.parametrize("count", COUNTS)
def test_our_numbers_are_vllms(watched: tuple[Prometheus, Answers], count: str) -> None:
    watching, _ = watched

    def told() -> tuple[float, float]:
        ours, theirs = (watching.now(query) for query in COUNTS[count])
        return ours, theirs

    until(lambda: told()[0] == told()[1] > 0, 30, f"{count}: the same of both, not {told()}")
