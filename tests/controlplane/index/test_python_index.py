"""Every index against the behaviour suite, and against a plain model over random histories."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from cachefleet_controlplane.index.protocol import BlockIndex, WorkerId, worker_id
from cachefleet_controlplane.index.python_index import PythonIndex
from cachefleet_core.block_keys import BlockKey, Tier
from cachefleet_core.report_frames import Cleared
from tests.controlplane.chains import chain, digest_of, removed, stored
from tests.controlplane.index.index_behaviour import (  # noqa: F401 - collected here
    IMPLEMENTATIONS,
    MakeIndex,
    TestForgetting,
    TestMatch,
    TestRefusals,
    TestSets,
    TestStats,
    index,
    make_index,
)

WORKERS = [worker_id("default/demo", name) for name in "abcd"]
# Chains that share beginnings, as prompts do.
ROOT = chain(1, 12)
CHAINS = [ROOT, *([*ROOT[:cut], *chain(cut + 2, 8)] for cut in (0, 3, 3 + 4, 12))]

workers = st.sampled_from(WORKERS)
tiers = st.sampled_from(list(Tier))


@st.composite
def slices(draw: st.DrawFn) -> tuple[list[BlockKey], int]:
    """Some consecutive blocks of a chain, and the key before them."""
    keys = draw(st.sampled_from(CHAINS))
    start = draw(st.integers(0, len(keys) - 1))
    stop = draw(st.integers(start + 1, len(keys)))
    return keys[start:stop], keys[start - 1] if start else 0


class IndexMachine(RuleBasedStateMachine):
    """Any history of operations gives what plain sets give."""

    make: MakeIndex

    @initialize()
    def begin(self) -> None:
        self.index: BlockIndex = self.make()
        self.model: dict[WorkerId, set[tuple[int, Tier]]] = {worker: set() for worker in WORKERS}

    @rule(worker=workers, part=slices(), tier=tiers)
    def store(self, worker: WorkerId, part: tuple[list[BlockKey], int], tier: Tier) -> None:
        keys, parent = part
        self.index.apply(worker, stored(keys, parent, tier))
        self.model[worker] |= {(key, tier) for key in keys}

    @rule(worker=workers, part=slices(), tier=tiers)
    def remove(self, worker: WorkerId, part: tuple[list[BlockKey], int], tier: Tier) -> None:
        self.index.apply(worker, removed(reversed(part[0]), tier))
        self.model[worker] -= {(key, tier) for key in part[0]}

    @rule(worker=workers)
    def clear(self, worker: WorkerId) -> None:
        self.index.apply(worker, Cleared())
        self.model[worker] = set()

    @rule(worker=workers)
    def forget(self, worker: WorkerId) -> None:
        self.index.forget(worker)
        self.model[worker] = set()

    @rule(keys=st.sampled_from(CHAINS), tier=tiers, limit=st.none() | st.integers(0, 25))
    def match(self, keys: list[BlockKey], tier: Tier, limit: int | None) -> None:
        expected = [_depth(keys[:limit], self.model[worker], tier) for worker in WORKERS]
        assert self.index.match(keys, WORKERS, tier=tier, limit=limit) == expected

    @invariant()
    def agrees(self) -> None:
        assert [self.index.digest(w) for w in WORKERS] == [digest_of(held) for held in self.model.values()]
        held = self.index.stats().held
        assert [held.get(worker, 0) for worker in WORKERS] == [len(held) for held in self.model.values()]


def _depth(keys: list[BlockKey], held: set[tuple[int, Tier]], tier: Tier) -> int:
    return next((i for i, key in enumerate(keys) if (key, tier) not in held), len(keys))


@pytest.mark.parametrize("make", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_any_history_equals_the_model(make: MakeIndex) -> None:
    machine = type("Machine", (IndexMachine,), {"make": staticmethod(make)})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=5 * settings().max_examples, stateful_step_count=30, deadline=None)
    )


def test_sweeping_is_spread_over_later_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachefleet_controlplane.index.python_index.SWEEP_KEYS", 100)
    swept = PythonIndex()
    swept.apply(WORKERS[0], stored(chain(1, 1000)))
    swept.forget(WORKERS[0])
    left = []
    for i in range(12):
        swept.apply(WORKERS[1], stored([i + 1]))
        left.append(swept.stats().keys - i - 1)
    assert left[:3] == [900, 800, 700]
    assert left[-1] == 0


def test_slots_are_used_again_so_that_masks_stay_short() -> None:
    churned = PythonIndex()
    for life in range(300):
        worker = worker_id("default/demo", f"w{life}")
        churned.apply(worker, stored(ROOT))
        churned.forget(worker)
    assert churned._bits_made < 5
