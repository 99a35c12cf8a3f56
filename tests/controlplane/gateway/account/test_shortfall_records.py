"""Why less was cached than predicted, told by a whole gateway: one test for each cause.

An agent says that a cold worker holds the prompt; what happens while the answer streams is the cause.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from cachefleet_controlplane.exposition import exposition
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.account.shortfall_records import Shortfalls
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.send.answers.usage import Usage
from cachefleet_controlplane.index.block_index import BlockIndex, IndexDefectError
from cachefleet_controlplane.index.worker_id import WorkerId, worker_id
from cachefleet_controlplane.routing.cache_shortfall import Surplus, surplus
from cachefleet_controlplane.routing.decision import Knowledge, Prompt, RoutingPolicy
from cachefleet_controlplane.store.decision_records import AttemptRecord, DecisionRecord, ShortfallRecord
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_core.block_keys import BlockKeyer, Namespace, pack_keys
from cachefleet_core.hit_rule import PLAIN, HitRule, window_key
from cachefleet_core.pool.policy import Isolation
from cachefleet_core.report_frames import Delta, Hello, Operation, Phase, Removed, Snapshot, State, Stored
from cachefleet_core.tenancy import DEFAULT_TENANT
from tests.controlplane.frames import sent
from tests.controlplane.gateway.harness import (
    BLOCK_SIZE,
    CONTRACT,
    FLEET_KEY,
    INDEX_KEY,
    POOL,
    SALT,
    Front,
    Known,
    Worker,
    chat,
    direct,
    engine,
    front,
)
from tests.controlplane.gateway.tenancies import CHAT, directory
from tests.controlplane.waiting import until, value
from tests.reference.candidate import Candidate
from tests.reference.choice import decide
from tests.reference.digest import Digest

CACHE_AWARE = RoutingPolicy.CACHE_AWARE
DESCRIBED: dict[str, Any] = {
    "tenant": DEFAULT_TENANT,
    "isolation": Isolation.PER_TENANT,
    "salt_version": 1,
    "rung": "render",
    "block_size": BLOCK_SIZE,
    "keys": bytes(8 * 62),
    "single": True,
}
LONG = "one two three four five six seven eight nine ten " * 12
IDS = range(1, 101)


class _Link:
    def send(self, frame: object) -> None:
        pass

    def close(self, code: str, reason: str) -> None:
        pass


class Agent:
    """Says of a worker what a test wants, true or not."""

    def __init__(self, gate: Front, number: int, ids: list[int], *, salt: str = SALT, rule: HitRule = PLAIN) -> None:
        self._gate = gate
        self._number = number
        self._connection = gate.fleet.connect(_Link())
        self._sequence = 0
        keyer = BlockKeyer(INDEX_KEY, Namespace(CONTRACT.fingerprint(), salt), BLOCK_SIZE)
        self.keys = keyer.keys(ids)
        self.rule = rule
        self.held = [*self.keys, *(window_key(key, window) for window in rule.windows for key in self.keys)]

    def begin(self) -> None:
        """It holds the whole prompt."""
        self.hello("e")
        chains = (Stored(0, pack_keys(self.held)),)
        self._gate.fleet.receive(self._connection, sent(Snapshot(sequence=0, part=0, last=True, chains=chains)))
        digest = Digest()
        digest.add(self.held)
        load: dict[str, Any] = {"phase": Phase.READY, "running": 0, "waiting": 0}
        state = State(sequence=0, digest=digest.value, held=len(self.held), **load)
        self._gate.fleet.receive(self._connection, state)

    def hello(self, epoch: str) -> None:
        name, url = self._gate.name(self._number), self._gate.engines[self._number].url
        hello = Hello(worker=name, pool=POOL, epoch=epoch, endpoint=url, contract=CONTRACT, rule=self.rule)
        self._gate.fleet.hello(self._connection, hello)

    def tell(self, *operations: Operation) -> None:
        self._sequence += 1
        self._gate.fleet.receive(self._connection, sent(Delta(sequence=self._sequence, operations=operations)))


async def rendered(worker: Worker) -> list[int]:
    status, body = await direct(worker, f"{CHAT}/render", chat(LONG))
    assert status == 200
    ids: list[int] = json.loads(body)["token_ids"]
    return ids


@asynccontextmanager
async def slow(*, rule: HitRule = PLAIN, **options: Any) -> AsyncIterator[tuple[Front, Agent]]:
    """A worker that takes its time for an answer, and its agent."""
    async with engine(inter_token_seconds=0.02) as one, front([one], **options) as gate:
        agent = Agent(gate, 0, await rendered(one), rule=rule)
        agent.begin()
        yield gate, agent


async def answered(gate: Front, meanwhile: Callable[[], None] = lambda: None) -> DecisionRecord:
    """The record of a request that was answered; ``meanwhile`` is done after its first bytes."""
    body = chat(LONG, stream=True, max_tokens=20)
    async with gate.http.post(gate.url + CHAT, json=body) as answer:
        assert answer.status == 200
        await answer.content.readany()
        meanwhile()
        await answer.read()
    await until(lambda: bool(gate.records))
    (record,) = gate.records
    return record


def the_cause(gate: Front, record: DecisionRecord, *, worker: str = "demo-0", of_several: bool = False) -> str:
    """Of the record, after a look at what is noted with it and counted.

    ``of_several``: the engine made several prompts of it, so that all is lost for another cause.
    """
    found = record.shortfall
    assert found is not None
    assert (found.worker, record.cached_tokens) == (worker, 0)
    assert found.tokens > 0
    name = "cachefleet_prediction_shortfalls_total"
    assert gate.metrics.registry.get_sample_value(name, {"cause": found.cause}) == 1
    labels = {"pool": POOL, "cause": "evicted" if found.cause == "unreported" else found.cause}
    lost = gate.metrics.registry.get_sample_value("cachefleet_lost_tokens_total", labels)
    whole = record.prompt_tokens + 1  # where it was rendered differently, nothing of it is known
    assert lost == (None if of_several else whole if found.cause == "rendered_differently" else found.tokens)
    return found.cause


async def test_as_much_as_predicted_is_no_shortfall() -> None:
    async with engine() as one, front([one]) as gate:
        await gate.chat(LONG)
        gate.report(0)
        await gate.chat(LONG)
        await until(lambda: len(gate.records) == 2)
        second = gate.records[1]
        assert second.cached_tokens == second.predicted_tokens > 0
        assert second.shortfall is None
        assert "prediction_shortfalls_total{" not in exposition(gate.metrics.registry)[0].decode()


async def test_unknown() -> None:
    async with slow() as (gate, _):
        record = await answered(gate)
        assert the_cause(gate, record) == "unknown"
        assert record.shortfall == ShortfallRecord("unknown", record.predicted_tokens, "demo-0")


async def test_evicted_even_where_it_was_stored_again() -> None:
    async with slow() as (gate, agent):
        *_, before, last = agent.keys

        def evict() -> None:
            agent.tell(Removed(pack_keys([last])))
            agent.tell(Stored(before, pack_keys([last])))

        assert the_cause(gate, await answered(gate, evict)) == "evicted"


async def test_what_is_computed_for_a_request_and_not_told_at_its_end_says_that_evictions_are_not_either() -> None:
    async with slow() as (gate, agent):
        agent.tell(Removed(pack_keys(agent.keys[-3:])))
        assert the_cause(gate, await answered(gate)) == "unreported"


@pytest.mark.parametrize("told", [Stored, Removed])
async def test_a_report_of_what_was_computed_for_a_request_would_tell_of_evictions(told: type[Operation]) -> None:
    async with slow() as (gate, agent):
        *before, last = agent.keys
        agent.tell(Removed(pack_keys([last])))

        def tell() -> None:
            agent.tell(Stored(before[-1], pack_keys([last])))
            if told is Removed:  # and it is evicted again
                agent.tell(Removed(pack_keys([last])))

        assert the_cause(gate, await answered(gate, tell)) == "unknown"


async def test_of_a_window_alone_what_was_needed_at_the_end_is_gone() -> None:
    """The prediction is of all but the last block; its window is of two."""
    async with slow(rule=HitRule(windows=(2,))) as (gate, agent):

        def slide() -> None:
            agent.tell(Removed(pack_keys([window_key(agent.keys[-2], 2)])))

        record = await answered(gate, slide)
        assert the_cause(gate, record) == "window"
        assert record.predicted_tokens >= (len(agent.keys) - 1) * BLOCK_SIZE


async def test_of_a_window_what_lies_before_it_is_not_needed() -> None:
    async with slow(rule=HitRule(windows=(2,))) as (gate, agent):
        far = window_key(agent.keys[0], 2)
        assert the_cause(gate, await answered(gate, lambda: agent.tell(Removed(pack_keys([far]))))) == "unknown"


async def test_what_was_evicted_beyond_the_prediction_explains_nothing() -> None:
    async with slow() as (gate, agent):
        assert the_cause(gate, await answered(gate, lambda: agent.tell(Removed(pack_keys([99]))))) == "unknown"


async def test_an_index_that_fails_costs_the_cause_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise IndexDefectError("broken")

    async with slow() as (gate, _):
        monkeypatch.setattr(gate.fleet.losses, "evicted", fail)
        assert the_cause(gate, await answered(gate)) == "unknown"


async def test_a_model_whose_hits_are_not_understood_is_decided_by_text() -> None:
    async with engine() as one, front([one], texts=True) as gate:
        link = gate.fleet.connect(_Link())
        said: dict[str, Any] = {"worker": gate.name(0), "pool": POOL, "epoch": "e", "endpoint": one.url}
        gate.fleet.hello(link, Hello(contract=CONTRACT, not_indexed="KV cache group 1 is odd", **said))
        for _ in range(2):
            await gate.chat(LONG)
        await until(lambda: len(gate.records) == 2)
        assert [record.knowledge for record in gate.records] == [Knowledge.LOAD, Knowledge.APPROXIMATE]


async def test_restarted() -> None:
    async with slow() as (gate, agent):
        assert the_cause(gate, await answered(gate, lambda: agent.hello("another"))) == "restarted"


async def test_salted() -> None:
    known = Known(directory(TenantRecord(name=DEFAULT_TENANT), keys=()))
    async with slow(known=known) as (gate, _):

        def salt() -> None:
            known.directory = directory(TenantRecord(name=DEFAULT_TENANT, salt_version=2), keys=())

        record = await answered(gate, salt)
        assert the_cause(gate, record) == "salted"
        assert record.salt_version == 1


async def test_stale() -> None:
    later = [0.0]
    async with slow(clock=lambda: time.monotonic() + later[0]) as (gate, _):
        later[0] = 3.0
        record = await answered(gate)
        assert the_cause(gate, record) == "stale"
        assert record.candidates[0].report_age == pytest.approx(3.0, abs=1.9)


async def test_moved() -> None:
    engines = [engine(), engine()]
    async with engines[0], engines[1], front(engines) as gate:
        Agent(gate, 0, await rendered(engines[1])).begin()
        gate.report(1)
        await engines[0].crash()
        record = await answered(gate)
        assert (record.worker, record.predicted_tokens, record.attempts[0].worker) == ("demo-1", 0, "demo-0")
        assert the_cause(gate, record) == "moved"


class Odd:
    """Renders a prompt of one length, and computes one of another."""

    def __init__(self) -> None:
        self.url = ""
        self.details: dict[str, int] | None = {"cached_tokens": 0}
        self.prompt_tokens = 101

    async def render(self, _: web.Request) -> web.Response:
        return web.json_response({"token_ids": list(IDS)})

    async def answer(self, _: web.Request) -> web.Response:
        usage = {"prompt_tokens": self.prompt_tokens, "completion_tokens": 1, "prompt_tokens_details": self.details}
        choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
        return web.json_response({"id": "c", "choices": [choice], "usage": usage})


@pytest.fixture
async def odd() -> AsyncIterator[Odd]:
    worker, app = Odd(), web.Application()
    app.router.add_post(f"{CHAT}/render", worker.render)
    app.router.add_post(CHAT, worker.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    worker.url = site.name
    yield worker
    await runner.cleanup()


@pytest.mark.parametrize(("changes", "cause"), [({}, "rendered_differently"), ({"n": 2}, "unknown")])
async def test_rendered_differently(odd: Odd, changes: dict[str, Any], cause: str) -> None:
    async with front([odd]) as gate:
        Agent(gate, 0, list(IDS)).begin()
        assert (await gate.chat("x", **changes))[0] == 200
        await until(lambda: bool(gate.records))
        assert the_cause(gate, gate.records[0], of_several=bool(changes)) == cause
        worker = gate.fleet._registry.worker(worker_id(POOL, "demo-0"))
        assert worker is not None
        assert (worker.evidence.claimed, worker.evidence.served) == (0, 0), "of two choices nobody can tell"


@pytest.mark.parametrize(
    ("changes", "claimed"),
    [
        ({}, True),
        ({"echo": False, "prompt_logprobs": None}, True),
        ({"prompt_logprobs": 0}, False),
        ({"prompt_logprob_token_ids": [[1]]}, False),
        ({"echo": True, "logprobs": True, "top_logprobs": 1}, False),
    ],
)
async def test_an_engine_that_was_told_to_skip_its_cache_is_not_blamed(
    odd: Odd,
    changes: dict[str, Any],
    claimed: bool,  # noqa: FBT001
) -> None:
    odd.prompt_tokens = 100
    async with front([odd]) as gate:
        Agent(gate, 0, list(IDS)).begin()
        assert (await gate.chat("x", **changes))[0] == 200
        await until(lambda: bool(gate.records))
        worker = gate.fleet._registry.worker(worker_id(POOL, "demo-0"))
        assert worker is not None
        assert (worker.evidence.claimed > 0, gate.records[0].shortfall is not None) == (claimed, claimed)


async def test_without_what_was_cached_there_is_no_telling(odd: Odd) -> None:
    odd.details = None
    async with front([odd]) as gate:
        Agent(gate, 0, list(IDS)).begin()
        await gate.chat("x")
        await until(lambda: bool(gate.records))
        assert gate.records[0].predicted_tokens > 0
        assert gate.records[0].shortfall is None


def continued(cached: int, *, knowledge: Knowledge = Knowledge.EXACT) -> ShortfallRecord | None:
    """Of an answer that "a" handed back; then it was one of a longer prompt, for another worker."""
    first, last = (
        decide(Prompt(1000, bytes(8 * 62), BLOCK_SIZE, knowledge=knowledge), [view], RoutingPolicy.CACHE_AWARE, 1.0)
        for view in (holder("a", 4), holder("b", 40))
    )
    assert (first.predicted_tokens, last.predicted_tokens) == (64, 640)
    trace = DecisionTrace("d", 0.0, "m", CHAT, last, first=first, continued=first, **DESCRIBED)
    trace.usage = Usage(
        prompt_tokens=1001 if knowledge is Knowledge.APPROXIMATE else 1000,
        cached_tokens=cached,
    )
    trace.attempts.append(AttemptRecord("a", "handed_back", 200, 1.0))
    return Shortfalls(Fleet(BlockIndex(), index_key=FLEET_KEY.index_key), lambda _: 1).find_shortfall(trace)


@pytest.mark.parametrize(
    ("cached", "changes", "told"),
    [
        (64, {}, (64, 64)),
        (0, {}, (64, 0)),
        (990, {}, (64, 990)),
        (None, {}, None),
        (0, {"prompt_tokens": 900}, None),
        (0, {"knowledge": Knowledge.APPROXIMATE}, None),
        (0, {"gone": True}, None),
        (0, {"described": {"reads_cache": False}}, None),
        (0, {"described": {"single": False}}, None),
        (0, {"completion_tokens": 0}, None),
        (0, {"prefilled": True}, None),
    ],
)
def test_what_it_served_of_its_claim_is_told_unless_something_else_was_wrong(
    cached: int | None, changes: dict[str, Any], told: tuple[int, int] | None
) -> None:
    view = replace(holder("a", 4), trust=500)
    knowledge = changes.get("knowledge", Knowledge.EXACT)
    decision = decide(Prompt(1000, bytes(8 * 62), BLOCK_SIZE, knowledge=knowledge), [view], CACHE_AWARE, 1.0)
    assert decision.predicted_tokens == 32, "half of it is counted on"
    trace = DecisionTrace("d", 0.0, "m", CHAT, decision, **(DESCRIBED | changes.get("described", {})))
    trace.usage = Usage(
        prompt_tokens=changes.get("prompt_tokens", 1000),
        completion_tokens=changes.get("completion_tokens", 1),
        cached_tokens=cached,
    )
    if "prefilled" in changes:
        trace.attempts.append(AttemptRecord("p", "answered", 200, 1.0, kind="prefill"))
    fleet = Listening(gone=changes.get("gone", False))
    Shortfalls(fleet, lambda _: 1).take_evidence(trace)
    assert fleet.heard == ([] if told is None else [(decision.id, *told)])


class Listening(Fleet):
    """A fleet that keeps what it is told of answers."""

    def __init__(self, *, gone: bool) -> None:
        super().__init__(BlockIndex(), index_key=FLEET_KEY.index_key)
        self.losses.restarted = lambda *_: gone  # type: ignore[method-assign]
        self.heard: list[tuple[str, int, int]] = []

    def served(self, worker: WorkerId, claimed: int, served: int) -> None:
        self.heard.append((worker, claimed, served))


def holder(name: str, blocks: int) -> Candidate:
    return Candidate(worker=name, id=worker_id("p", name), pool="p", url="u", matched_blocks=blocks, report_age=0.1)


def test_an_answer_that_was_handed_back_is_measured_by_its_first_worker() -> None:
    assert continued(64) is None
    assert continued(48) == ShortfallRecord("restarted", 16, "a"), "it is gone, and nothing moved"
    estimated = continued(48, knowledge=Knowledge.APPROXIMATE)
    assert estimated == ShortfallRecord("restarted", 16, "a"), "an estimated length is not another prompt"


async def test_what_others_are_computing_is_predicted() -> None:
    """Two requests with the same beginning, at once: the second one's prompt is under way when it is decided."""
    text = "the same long beginning of both prompts " * 16
    async with engine(prefill_tokens_per_second=400, max_batched_tokens=64) as worker, front([worker]) as gate:
        gate.report(0)
        both = [asyncio.create_task(gate.chat(text, max_tokens=1)) for _ in range(2)]
        await until(lambda: gate.fleet.view().inflight_requests == 2)
        await asyncio.gather(*both)
        first, second = sorted(gate.records, key=lambda record: record.cached_tokens or 0)
        surplus = {cause: value(gate.metrics, "prediction_surplus_tokens_total", cause=cause) for cause in Surplus}
    assert (first.cached_tokens, first.predicted_tokens) == (0, 0)
    assert second.cached_tokens == second.predicted_tokens > 0
    assert next(one.predicted_tokens for one in second.candidates if one.chosen) == 0, "no report tells of it"
    assert (second.shortfall, set(surplus.values())) == (None, {0})


@pytest.mark.parametrize(
    ("expected", "cached", "causes"),
    [
        (64, 64, {}),
        (64, 0, {}),
        (160, 128, {"under_way": 64}),
        (160, 192, {"under_way": 96, "later": 32}),
        (0, 96, {"later": 32}),
    ],
)
def test_a_surplus_is_first_what_was_under_way(expected: int, cached: int, causes: dict[str, int]) -> None:
    assert surplus(predicted=64, expected=expected, cached=cached) == causes
