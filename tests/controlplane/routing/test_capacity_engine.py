"""Admission against a scheduler that preempts: what is let in fits to its end, and leaves free what is to stay free."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from cachefleet_native import InFlightRequest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.routing.decision import Decision, Knowledge, Prompt, RoutingPolicy, Verdict
from cachefleet_core.block_keys import pack_keys
from tests.controlplane.fleets import MODEL, FakeLink, LiveFleet, pool, view, wid
from tests.controlplane.frames import hello, snapshot, state
from tests.fakes.block_pool import BlockPool
from tests.fakes.scheduler import Scheduler, Sequence

BLOCKS, SIZE = 64, 16
PERCENT = 10
RESERVE = math.ceil((BLOCKS - 1) * PERCENT / 100)
MOST_TOKENS = (BLOCKS - 1 - RESERVE) * SIZE
Step = tuple[str, int, int, int]


@dataclass(slots=True)
class Sent:
    sequence: Sequence
    inflight: InFlightRequest


class Simulation:
    """One replica, one engine, and its agent, which speaks when it is told to."""

    def __init__(self, policy: RoutingPolicy = RoutingPolicy.CACHE_AWARE) -> None:
        self.fleet = LiveFleet(policy=policy)
        self.fleet.update_pools([view(pool(admission={"minFreeBlockPercent": PERCENT}), ["demo-0"])])
        self.link = FakeLink()
        self.link.connection = self.fleet.connect(self.link)
        self.fleet.hello(self.link.connection, hello())
        self.blocks = BlockPool(BLOCKS, SIZE)
        self.engine = Scheduler(
            self.blocks, lambda _: 7, eos=0, max_num_seqs=6, max_batched_tokens=96, max_model_len=10_000
        )
        self.open: list[Sent] = []
        self.refused = 0
        self.report()

    def send(self, family: int, tokens: int, max_tokens: int, *, shared: int = 160) -> Decision:
        """A prompt that begins as others of its family do, and goes on as others of its length do."""
        tokens = min(tokens, MOST_TOKENS - max_tokens)
        ids = [family + 10] * min(tokens, shared) + [100 + tokens % 3] * max(0, tokens - shared)
        keyer = self.fleet.keyer(MODEL)
        assert keyer is not None
        prompt = Prompt(tokens, pack_keys(keyer.keys(ids)), SIZE, max_tokens, Knowledge.EXACT)
        decision = self.fleet.route(MODEL, prompt)
        if decision.verdict is Verdict.ROUTE:
            sequence = Sequence(ids, max_tokens)
            self.engine.add(sequence)
            self.open.append(Sent(sequence, self.fleet.begin(decision, prompt)))
        self.refused += decision.verdict is Verdict.QUEUE
        self.fleet.now += 1e-3
        return decision

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.update(self.engine.schedule())
            for one in list(self.open):
                if one.sequence.output:
                    one.inflight.first_token()
                if one.sequence.finish is not None:
                    one.inflight.finish(cached_tokens=one.sequence.cached_tokens)
                    self.open.remove(one)
            self.fleet.now += 1e-3

    def index(self) -> None:
        """The agent says what is held, and nothing yet of its load."""
        keyer = self.fleet.keyer(MODEL)
        assert keyer is not None
        chains = [chain for link in self.blocks.held() if (chain := keyer.keys(link.prefix()))]
        self.fleet.receive(self.link.connection, snapshot(0, *chains))

    def report(self) -> None:
        self.index()
        self.fleet.receive(
            self.link.connection,
            state(
                0,
                digest=self.fleet.index.digest(wid("demo-0")),
                running=len(self.engine.running),
                waiting=len(self.engine.waiting),
                blocks_total=BLOCKS,
                blocks_free=self.blocks.free,
                blocks_idle=self.blocks.idle,
            ),
        )
        self.fleet.now += 1e-3

    def step(self, what: str, family: int, tokens: int, number: int) -> None:
        match what:
            case "send":
                self.send(family, tokens, 1 + number)
            case "run":
                self.run(1 + number % 8)
            case "index":
                self.index()
            case _:
                self.report()


steps = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "run", "index", "report"]),
        st.integers(0, 2),
        st.integers(1, 400),
        st.integers(0, 99),
    ),
    max_size=60,
)


@given(steps)
def test_whatever_is_let_in_fits_and_leaves_the_reserve(history: list[Step]) -> None:
    simulation = Simulation()
    for one in history:
        simulation.step(*one)
        assert simulation.blocks.free >= RESERVE
    simulation.run(1500)
    assert not simulation.open
    assert simulation.engine.counters.preemptions == 0


def test_a_shared_prefix_lets_in_many_more() -> None:
    """Of ten blocks in common and two of their own, four would fit if each needed all, and twenty do."""
    simulation = Simulation()
    simulation.send(0, 161, 20)
    simulation.run(4)
    simulation.report()
    let_in = [simulation.send(0, 161, 20).verdict is Verdict.ROUTE for _ in range(25)]
    assert let_in.count(True) >= 18
    simulation.run(400)
    assert simulation.engine.counters.preemptions == 0


def test_held_blocks_that_are_idle_have_to_be_taken_all_the_same() -> None:
    """Ten are idle, and others will fill 48: of the 63 less 7, eight may be taken, and with all ten it needs 12."""
    simulation = Simulation()
    simulation.send(0, 161, 20)
    simulation.run(40)
    for number in range(4):
        assert simulation.send(1, 160 - number, 32, shared=0).verdict is Verdict.ROUTE
    simulation.run(4)
    simulation.report()
    assert simulation.send(0, 161, 30).verdict is Verdict.QUEUE
    assert simulation.send(2, 20, 12, shared=0).verdict is Verdict.ROUTE


def test_what_was_stored_by_a_request_that_has_ended_since_the_report_may_be_idle_too() -> None:
    simulation = Simulation()
    for number in range(3):
        simulation.send(1, 160 - number, 60, shared=0)
    simulation.run(6)
    simulation.report()
    simulation.send(0, 161, 2)
    simulation.run(8)
    assert len(simulation.open) == 3
    simulation.send(2, 60, 60, shared=0)
    simulation.index()
    (score,) = simulation.send(0, 161, 30).scores
    assert (score.matched_blocks, score.needed_blocks, score.fits) == (10, 12, False)
    simulation.report()
    assert simulation.send(0, 161, 30).scores[0].needed_blocks == 12


@pytest.mark.parametrize("policy", [RoutingPolicy.CACHE_AWARE, RoutingPolicy.ROUND_ROBIN])
def test_without_it_the_engine_preempts(policy: RoutingPolicy) -> None:
    simulation = Simulation(policy)
    for number in range(12):
        simulation.send(number % 3, 200 + number, 90, shared=0)
    simulation.run(1500)
    assert (simulation.engine.counters.preemptions > 0) == (policy is RoutingPolicy.ROUND_ROBIN)
    assert (simulation.refused > 0) == (policy is RoutingPolicy.CACHE_AWARE)
