"""Decisions by kept tables against the reference, which looks at every worker anew, after every event of a fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cachefleet_native
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from cachefleet_controlplane.index.worker_id import WorkerId, worker_id
from cachefleet_controlplane.routing.decision import Knowledge, Prompt, RoutingPolicy
from cachefleet_controlplane.routing.worth import Worth
from cachefleet_controlplane.selection.eligibility import Duty
from cachefleet_core.block_keys import BlockKey, Tier, pack_keys
from cachefleet_core.hit_rule import PLAIN, HitRule, window_key
from cachefleet_core.pool.adapter_reports import AdapterReport
from cachefleet_core.report_fields import Flight
from cachefleet_core.report_frames import Loads, Operation, Phase, SharedLoad
from tests.controlplane.chains import chain, removed, stored
from tests.controlplane.fleets import MODEL, FakeLink, LiveFleet, pool, ranked, view
from tests.controlplane.frames import CONTRACT, delta, hello, snapshot, state
from tests.reference.choice import everything
from tests.reference.loads import ModelledFleet, ModelledRequest
from tests.reference.selection import ReferenceSelector

CHAINS = [chain(1, 12), [*chain(1, 12)[:5], *chain(2, 7)], chain(3, 12)]
ENGINE = {
    "image": "vllm",
    "blockSize": 16,
    "maxModelLen": 4096,
    "kvTransfer": {"kv_connector": "x"},
    "dataParallelSize": 2,
}
RULES = [
    PLAIN,
    PLAIN,
    HitRule(windows=(3,)),
    HitRule(windows=(1, 3)),
    HitRule(full=False, windows=(3,)),
    HitRule(dropped=1),
]
NAMES = ["demo-0", "demo-1", "demo-2"]
Who = tuple[str, str, int]
WHO: list[Who] = [
    ("default/demo", "demo-0", 0),
    ("default/demo", "demo-0", 1),
    ("default/demo", "demo-1", 0),
    ("default/other", "demo-2", 0),
]
"""Few, so that one history has much of each."""
PROMPTS = [
    Prompt(),
    Prompt(tokens=70),
    Prompt(tokens=10, block_size=16, max_tokens=5, knowledge=Knowledge.EXACT),
    *(
        Prompt(blocks * 16 + extra, pack_keys(keys[:blocks]), 16, 100, Knowledge.EXACT)
        for keys in CHAINS
        for blocks, extra in ((12, 0), (1, 1))
    ),
    *(Prompt(65, pack_keys(CHAINS[0][:4]), 16, 100, Knowledge.EXACT, adapter=name) for name in ("a", "c")),
    Prompt(33, pack_keys(CHAINS[0][:2]), 16, 0, Knowledge.LOAD),
    Prompt(33, pack_keys(CHAINS[0][:2]), 16, 0, Knowledge.APPROXIMATE),
]
LONG = PROMPTS[3]
who = st.sampled_from(WHO)
names = st.lists(st.sampled_from(NAMES), unique=True)
counts = st.sampled_from([0, 0, 1, 3, 40, 5000])
origins = st.sampled_from(["a", "b"])


@st.composite
def flights(draw: st.DrawFn) -> Flight:
    """A request of another replica, of whose prompt some keys from some block on are told."""
    line, skip, keys = draw(st.sampled_from(CHAINS)), draw(st.integers(0, 12)), draw(st.integers(0, 12))
    return Flight(
        number=1,
        age=draw(st.sampled_from([0.0, 0.5, 2.0, 29.0, 31.0])),
        computing=draw(st.booleans()),
        tokens=draw(counts),
        sequences=draw(st.integers(0, 3)),
        blocks=draw(st.integers(0, 15)),
        taken=draw(st.integers(0, 15)),
        skip=skip,
        common=draw(st.integers(0, 12)),
        keys=pack_keys(line[skip : skip + keys]),
    )


@dataclass
class Telling:
    """What a replica tells: of new requests, of some of its last ones, and whether these compute."""

    fresh: list[Flight]
    again: list[tuple[int, bool]]
    ended: list[int]
    failed: list[int]
    whole: bool


def tellings() -> st.SearchStrategy[Telling]:
    last = st.lists(st.integers(1, 8), max_size=2)
    again = st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=3, unique_by=lambda pair: pair[0])
    return st.builds(Telling, st.lists(flights(), max_size=3), again, last, last, st.booleans())


rates = st.sampled_from([None, None, 0.0, 1000.0, 1100.0, 9000.0])


def wid(one: Who) -> WorkerId:
    return worker_id(*one)


class BoardMachine(RuleBasedStateMachine):
    """Whatever happens, what is decided is what a look at everything decides."""

    @initialize(bounds=st.sampled_from([{}, {"max_held": 15}]))
    def begin(self, bounds: dict[str, Any]) -> None:
        self.fleet = ModelledFleet(**bounds)
        self.plain = ReferenceSelector(self.fleet)
        self.links: dict[Who, FakeLink] = {}
        self.sequences = dict.fromkeys(WHO, 0)
        self.inflight_requests: list[ModelledRequest] = []
        self.elsewhere: dict[tuple[Who, str], list[tuple[Flight, float]]] = {}
        self.epochs = 0
        self.declare(NAMES, [], role="Both", both=True)
        for one in WHO:
            self.greet(one, strange=False)
            self.report(one, waiting=0, free=0, rate=None, phase=Phase.READY, right=True)

    # The source of pools.

    @rule(ready=names, unready=names, role=st.sampled_from(["Both", "Prefill"]), both=st.booleans())
    def declare(self, ready: list[str], unready: list[str], *, role: str, both: bool) -> None:
        waiting = [name for name in unready if name not in ready]
        other = view(pool("other", role=role, engine=ENGINE), ready, waiting)
        first = ranked(2, admission={"minFreeBlockPercent": 5 * len(ready)})
        self.fleet.update_pools([view(first, ready, waiting), *([other] if both else [])])
        self.pools = {"default/demo", "default/other"} if both else {"default/demo"}

    # The agents.

    @rule(one=who, strange=st.booleans(), hits=st.sampled_from(RULES))
    def greet(self, one: Who, *, strange: bool, hits: HitRule = PLAIN) -> None:
        of, name, rank = one
        if of not in self.pools:
            return
        self.epochs += 1
        link = self.links[one] = FakeLink()
        link.connection = self.fleet.connect(link)
        contract = replace(CONTRACT, tokenizer="sha256:bb") if strange else CONTRACT
        said: dict[str, Any] = {"max_batched_tokens": 512 * rank, "contract": contract, "rule": hits}
        greeting = hello(name, f"e{self.epochs}", pool=of, rank=rank, **said)
        self.fleet.hello(link.connection, greeting)
        self.sequences[one] = 0
        self.resume(one, held=self.epochs % 7)

    @rule(one=who, held=st.integers(0, 12))
    def resume(self, one: Who, held: int) -> None:
        """All that it holds."""
        self.say(one, snapshot(self.sequences[one], *([CHAINS[0][:held]] if held else []), rank=one[2]))

    @rule(one=who, line=st.sampled_from(CHAINS), held=st.integers(1, 12), step=st.sampled_from([1, 1, 1, 2]))
    def store(self, one: Who, line: list[int], held: int, step: int) -> None:
        self.change(one, stored(line[:held]), step)

    @rule(one=who, line=st.sampled_from(CHAINS), window=st.sampled_from([1, 3]), at=st.integers(0, 12))
    def store_windows(self, one: Who, line: list[int], window: int, at: int) -> None:
        keys = [window_key(BlockKey(key), window) for key in line]
        self.change(one, stored(keys[at - 2 : at + 4] if at > 1 else keys[:6]), 1)

    @rule(one=who, line=st.sampled_from(CHAINS), window=st.sampled_from([1, 3]), at=st.integers(0, 11))
    def evict_windows(self, one: Who, line: list[int], window: int, at: int) -> None:
        self.change(one, removed([window_key(BlockKey(line[at]), window)]), 1)

    @rule(one=who, line=st.sampled_from(CHAINS), at=st.integers(0, 11), held=st.integers(1, 12))
    def offload(self, one: Who, line: list[int], at: int, held: int) -> None:
        self.change(one, stored(line[at : at + held], tier=Tier.HOST), 1)

    @rule(one=who, line=st.sampled_from(CHAINS), at=st.integers(0, 11))
    def evict_below(self, one: Who, line: list[int], at: int) -> None:
        self.change(one, removed(line[at : at + 2], tier=Tier.HOST), 1)

    @rule(one=who, line=st.sampled_from(CHAINS), kept=st.integers(0, 11))
    def evict(self, one: Who, line: list[int], kept: int) -> None:
        self.change(one, removed(line[kept:]), 1)

    @rule(one=who, part=st.integers(0, 1))
    def resume_in_parts(self, one: Who, part: int) -> None:
        """A part of two comes, which may be the wrong one."""
        chains = CHAINS[2][6 * part : 6 * part + 6]
        self.say(one, snapshot(self.sequences[one], chains, part=part, last=part == 1, rank=one[2]))

    @rule(
        one=who,
        waiting=counts,
        free=counts,
        rate=rates,
        phase=st.sampled_from([Phase.READY, Phase.READY, Phase.READY, Phase.DRAINING]),
        right=st.sampled_from([True, True, False]),
        tight=st.sampled_from([0, 0, 9, 30, 30]),
    )
    def report(
        self, one: Who, waiting: int, free: int, rate: float | None, *, phase: Phase, right: bool, tight: int = 0
    ) -> None:
        self.say(
            one,
            state(
                self.sequences[one],
                rank=one[2],
                digest=self.fleet.index.digest(wid(one)) ^ (not right),
                phase=phase,
                running=waiting % 3,
                waiting=waiting % 5,
                waiting_tokens=waiting or None,
                blocks_total=tight or free * 2,
                blocks_free=min(free, tight or free),
                blocks_idle=free // 2 if waiting % 2 else None,
                prefill_tokens_per_second=rate,
                loaded_tokens_per_second=(None, 900.0, 50_000.0)[waiting % 3],
                inter_token_seconds=rate and 1 / rate,
                adapters=AdapterReport(served=("a", "b", "c"), slots=waiting % 3, busy=("a", "b")[: free % 3]),
            ),
        )

    @rule(free=st.sampled_from([0, 5, 11, 12, 19, 20, 21]), total=st.sampled_from([15, 20, 22, 40]), idle=st.booleans())
    def strain(self, free: int, total: int, *, idle: bool) -> None:
        """Nobody has much room, or anybody some blocks that may be idle."""
        for one in WHO:
            self.report(one, waiting=1 + idle, free=free, rate=None, phase=Phase.READY, right=True, tight=total)

    @rule(one=who, claimed=st.sampled_from([0, 20_000, 500_000]), served=st.sampled_from([0, 5000, 500_000]))
    def answer(self, one: Who, claimed: int, served: int) -> None:
        """What it served of what it claimed."""
        self.fleet.served(wid(one), claimed, served)

    @rule(one=who, why=st.sampled_from(["", "asleep"]))
    def suspend(self, one: Who, why: str) -> None:
        """Its engine falls asleep, or wakes."""
        digest = self.fleet.index.digest(wid(one))
        self.say(one, state(self.sequences[one], rank=one[2], digest=digest, suspended=why))

    @rule(one=who)
    def hang_up(self, one: Who) -> None:
        if one in self.links:
            self.fleet.disconnect(self.links.pop(one).connection)

    # Other replicas.

    @rule(one=who, origin=origins, told=tellings())
    def hear(self, one: Who, origin: str, told: Telling) -> None:
        """One tells of its requests, of some not for the first time."""
        link, known = self.links.get(one), self.elsewhere.setdefault((one, origin), [])
        if link is None:
            return
        now, count = self.fleet.now, len(known)
        again = [(*known[-at], busy) for at, busy in told.again if at <= count]
        flying = [replace(flight, age=now - sent_at, computing=busy) for flight, sent_at, busy in again]
        for flight in told.fresh:
            sent_at = max(now - flight.age, known[-1][1] if known else 0.0)
            known.append((replace(flight, number=len(known) + 1), sent_at))
            flying.append(replace(known[-1][0], age=now - sent_at))
        load = SharedLoad(
            rank=one[2],
            origin=origin,
            whole=told.whole,
            flights=tuple(sorted(flying, key=lambda flight: flight.number)),
            ended=tuple(len(known) - number for number in told.ended if number < len(known)),
            failed=tuple(len(known) - number for number in told.failed if number < len(known)),
        )
        self.fleet.hear(link.connection, Loads((load,)))

    # The gateway.

    @rule(prompt=st.sampled_from(PROMPTS))
    def send(self, prompt: Prompt) -> None:
        decision = self.fleet.route(MODEL, prompt)
        if decision.worker:
            self.inflight_requests.append(self.fleet.begin(decision, prompt))

    @precondition(lambda self: self.inflight_requests)
    @rule(which=st.integers(0, 99))
    def first_token(self, which: int) -> None:
        self.inflight_requests[which % len(self.inflight_requests)].first_token()

    @precondition(lambda self: self.inflight_requests)
    @rule(which=st.integers(0, 99), cached=st.sampled_from([None, 5]))
    def finish(self, which: int, cached: int | None) -> None:
        self.inflight_requests.pop(which % len(self.inflight_requests)).finish(cached_tokens=cached)

    @rule(one=who, prompt=st.sampled_from(PROMPTS), lacking=st.integers(0, 12), held=st.integers(0, 12))
    def refute(self, one: Who, prompt: Prompt, lacking: int, held: int) -> None:
        """Its engine says that it has less than the index says."""
        self.fleet.refuted_blocks.add(wid(one), prompt.keys, lacking=lacking, held=held)

    @rule(worth=st.sampled_from([Worth(), Worth(0.1, 0.0), Worth(0.3, 2.0, 500.0, 300.0), Worth(0.0, 50.0, 1e6, 9.0)]))
    def weigh(self, worth: Worth) -> None:
        """A pool has learnt what work and evictions cost others."""
        for worker in self.fleet._registry.pools["default/demo"].workers.values():
            worker.weigh(worth)

    @rule(prompt=st.sampled_from(PROMPTS), blocks=st.integers(1, 12), seconds=st.sampled_from([0.01, 1.0, 100.0]))
    def pay(self, prompt: Prompt, blocks: int, seconds: float) -> None:
        """It was waited for a prefix."""
        if len(prompt.keys) >= 8 * blocks:
            self.fleet._registry.paid_waiting.add(prompt.keys[8 * blocks - 8 : 8 * blocks], seconds, self.fleet.now)

    @rule(name=st.sampled_from(NAMES))
    def fail(self, name: str) -> None:
        self.fleet.worker_failed(f"default/demo/{name}")

    @rule(name=st.sampled_from(NAMES))
    def refuse_the_key(self, name: str) -> None:
        self.fleet.key_refused(f"default/demo/{name}")

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.5, 5.0, 5.1, 10.0, 15.0]))
    def wait(self, seconds: float) -> None:
        self.fleet.now += seconds

    def change(self, one: Who, operation: Operation, step: int) -> None:
        self.sequences[one] += step
        self.say(one, delta(self.sequences[one], operation, rank=one[2]))

    def say(self, one: Who, frame: Any) -> None:
        link = self.links.get(one)
        if link is not None and one[2] in link.connection.ranks:
            self.fleet.receive(link.connection, frame)

    @invariant()
    def every_decision_is_as_if_made_anew(self) -> None:
        if hasattr(self, "fleet"):
            for prompt in PROMPTS:
                assert_alike(self.fleet, self.plain, prompt)
            assert_alike(self.fleet, self.plain, LONG, duty=Duty.PREFILL)
            assert_alike(self.fleet, self.plain, LONG, exclude=frozenset({"default/demo/demo-0"}))
            both = frozenset({"default/demo/demo-0", "default/demo/demo-1", worker_id("default/demo", "demo-1")})
            assert_alike(self.fleet, self.plain, LONG, exclude=both)
            assert_alike(self.fleet, self.plain, LONG, policy=RoutingPolicy.LEAST_LOADED)
            assert_alike(self.fleet, self.plain, LONG, policy=RoutingPolicy.ROUND_ROBIN)


def assert_alike(fleet: LiveFleet, plain: ReferenceSelector, prompt: Prompt, **options: Any) -> None:
    """Asked in this order, so that silence has had its consequences."""
    ours = fleet.route(MODEL, prompt, **options)
    theirs = plain.choose(MODEL, prompt, now=fleet.now, **{"policy": RoutingPolicy.CACHE_AWARE} | options)
    assert everything(ours) == everything(theirs)


TestBoards = BoardMachine.TestCase
TestBoards.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=40, deadline=None)


def test_a_defect_of_the_choice_costs_the_prefix_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = LiveFleet()
    fleet.update_pools([view(pool(), ["demo-0"])])
    fleet.report("demo-0", CHAINS[0])
    assert fleet.route(MODEL, LONG).predicted_tokens
    table = fleet._selector._tables.of(MODEL, Duty.ANSWER)
    monkeypatch.setattr(table, "native", DefectiveTable(table.native))
    decision = fleet.route(MODEL, LONG)
    assert (decision.worker, decision.knowledge, decision.predicted_tokens) == ("demo-0", Knowledge.LOAD, 0)


class DefectiveTable:
    """Fails for every prompt of which keys are known."""

    def __init__(self, native: cachefleet_native.WorkerTable) -> None:
        self._native = native

    def choose(self, index: Any, keys: bytes, *arguments: Any, **named: Any) -> cachefleet_native.Choice | None:
        if keys:
            raise cachefleet_native.InternalError("a defect")
        return self._native.choose(index, keys, *arguments, **named)
