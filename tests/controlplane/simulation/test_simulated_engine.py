"""The modelled engine beside the protocol-true fake one, step by step on the same requests."""

import hashlib
import random
from array import array
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.replay_work import BLOCK, line, requests, synthetic
from cachefleet_controlplane.routing.throughput import OWN_BLOCKS
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.simulated_blocks import SimulatedBlocks
from cachefleet_controlplane.simulation.simulated_scheduler import Generation, SimulatedScheduler
from cachefleet_controlplane.simulation.workload import SimulatedRequest
from cachefleet_core.block_keys import unpack_keys
from cachefleet_core.report_frames import Removed
from cachefleet_core.report_frames import Stored as StoredKeys
from tests.fakes.block_pool import BlockPool
from tests.fakes.kv_events import Event, Stored
from tests.fakes.scheduler import Scheduler, Sequence

SETUP = Setup(blocks=120, model_len=1024)
STEP_SECONDS = 0.05
"""Time between two steps: requests come at the step of their arrival."""


class Engines:
    """Both engines; ``step`` steps them together and compares them."""

    def __init__(self, setup: Setup) -> None:
        chance = random.Random(1)
        self.fake = Scheduler(
            BlockPool(setup.blocks + OWN_BLOCKS, BLOCK),
            lambda _: chance.getrandbits(16),
            eos=-1,
            max_num_seqs=setup.running,
            max_batched_tokens=setup.batched_tokens,
            max_model_len=setup.model_len,
        )
        self.fake.pool.bound(setup.budget_blocks)
        self.modelled = SimulatedScheduler(
            SimulatedBlocks(setup.blocks, setup.budget_blocks),
            block_size=BLOCK,
            running=setup.running,
            batched_tokens=setup.batched_tokens,
        )
        self.hits: list[int] = []
        self._pairs: dict[Sequence, Generation] = {}
        self._keys: dict[bytes, int] = {}
        self._copies: Counter[int] = Counter()
        self._held: set[int] = set()

    def add(self, request: SimulatedRequest) -> None:
        sequence = Sequence(tokens(request), request.outputs, ignore_eos=True)
        self._pairs[sequence] = Generation(request.all_keys(BLOCK), request.tokens, request.outputs)
        self.fake.add(sequence)
        self.modelled.waiting.append(self._pairs[sequence])

    def step(self) -> None:
        theirs, ours = self.fake.schedule(), self.modelled.schedule()
        assert [(self._pairs[sequence], count) for sequence, count in theirs.work] == ours.work
        assert (theirs.prefill_tokens, theirs.decoding) == (ours.prefill_tokens, ours.decoding)
        advanced, events = self.fake.update(theirs)
        assert [self._pairs[sequence] for sequence in advanced] == self.modelled.update(ours)
        for sequence in advanced:
            self._ended(sequence)
        self._compare_blocks(events)

    def _ended(self, sequence: Sequence) -> None:
        generation = self._pairs[sequence]
        assert generation.over == (sequence.finish is not None)
        assert generation.cached_tokens == sequence.cached_tokens
        if generation.over:
            self.hits.append(generation.cached_tokens // BLOCK)

    def _compare_blocks(self, events: list[Event]) -> None:
        for sequence, generation in self._pairs.items():
            self._keys |= {link.digest: key for link, key in zip(sequence.links, generation.keys, strict=False)}
        for event in events:
            links = event.links if isinstance(event, Stored) else [event.link]  # type: ignore[union-attr]
            self._copies.update({self._keys[link.digest]: 1 if isinstance(event, Stored) else -1 for link in links})
        for operation in self.modelled.pool.take():
            assert isinstance(operation, StoredKeys | Removed)
            keys = set(unpack_keys(operation.keys))
            self._held = self._held | keys if isinstance(operation, StoredKeys) else self._held - keys
        assert {key for key, copies in self._copies.items() if copies} == self._held
        theirs, ours = self.fake.pool, self.modelled.pool
        assert (theirs.free, theirs.idle, len(theirs.held())) == (ours.free, ours.idle, ours.held)


def tokens(request: SimulatedRequest) -> list[int]:
    """Of each block other ones, and of each prompt's end."""
    names = [b"%d" % key for key in request.keys] + [b"end %d" % request.number]
    return [token for name in names for token in array("H", hashlib.sha256(name).digest())][: request.tokens]


def served(work: list[SimulatedRequest], setup: Setup) -> Engines:
    """Both engines once they have answered all requests."""
    engines, left, moment = Engines(setup), list(work), 0.0
    while left or engines.fake.busy:
        while left and left[0].at <= moment:
            engines.add(left.pop(0))
        engines.step()
        moment += STEP_SECONDS
    theirs, ours = engines.fake.counters, engines.modelled.counters
    assert (theirs.preemptions, theirs.queries, theirs.hits) == (ours.preemptions, ours.queries, ours.hits)
    return engines


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    blocks=st.integers(64, 200),
    budget=st.none() | st.integers(0, 100),
    running=st.integers(1, 8),
    batched=st.integers(8, 128),
)
def test_it_steps_as_the_fake_engine_does(
    seed: int, blocks: int, budget: int | None, running: int, batched: int
) -> None:
    work = synthetic(conversations=5, turns=5, seed=seed)
    setup = replace(SETUP, blocks=blocks, budget_blocks=budget, running=running, batched_tokens=batched)
    assert len(served(work, setup).hits) == len(work)


@pytest.mark.parametrize("budget", [None, 60, 0])
def test_it_serves_and_evicts_as_the_fake_engine_does(budget: int | None) -> None:
    hits = sum(served(synthetic(conversations=10, turns=6), replace(SETUP, budget_blocks=budget)).hits)
    assert hits > 0


def test_it_preempts_as_the_fake_engine_does() -> None:
    work = requests(line(0.0, range(20 * n, 20 * n + 20), 3, 120) for n in range(4))
    assert served(work, replace(SETUP, blocks=90)).modelled.counters.preemptions > 0
