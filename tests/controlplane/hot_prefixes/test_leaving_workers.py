"""What a draining worker alone holds of contracts is shared out among ready ones, once, within shares and time."""

from __future__ import annotations

from array import array

import msgspec

from cachefleet_controlplane.hot_prefixes.hot_prefix import HotBounds, Line
from cachefleet_controlplane.hot_prefixes.leaving_workers import LEAVE_SECONDS, LOOK_SECONDS, LeavingWorkers
from cachefleet_controlplane.hot_prefixes.tracker import HotPrefixes
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.metrics import Metrics
from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.report_frames import Hello, Phase
from cachefleet_core.tenancy import TenantId
from tests.controlplane.frames import hello, state
from tests.controlplane.waiting import value

BLOCK = 16
POOL = "default/demo"
MODEL = "default/tiny"
ACME = TenantId("acme")
CONTRACT = hello().contract.fingerprint()


class Pool:
    """Workers of which a test says who holds what; the first one drains."""

    def __init__(self, *ready: str, rate: float | None = None) -> None:
        self.now = 0.0
        self.ready = set(ready)
        self.held: dict[bytes, set[str]] = {}
        self.hot = HotPrefixes(HotBounds())
        self.metrics = Metrics()
        self.leaving = LeavingWorkers(
            self.hot,
            self,
            self.metrics,
            rate=lambda _: rate,
            ready=lambda _: set(self.ready),
            clock=lambda: self.now,
        )

    def of(self, _: str, __: bytes, last: bytes) -> list[WorkerId]:
        return [WorkerId(f"{POOL}/{name}#0") for name in sorted(self.held[last])]

    def heat(self, number: int, *holders: str, times: int = 2, tenant: str = "acme") -> None:
        """A prefix of one block of this number, held by these."""
        ids = [number] * BLOCK
        keys = BlockKeyer(b"k" * 32, Namespace(CONTRACT, tenant), BLOCK).packed_keys(ids)
        self.held[keys] = set(holders)
        for _ in range(times):
            if (wanted := self.hot.note(Line(MODEL, CONTRACT, TenantId(tenant), tenant), keys, 0.0)) is not None:
                self.hot.learn(wanted.key, array("I", ids).tobytes())

    def says(
        self, name: str, phase: Phase, *, tokens: int = 100 * BLOCK, epoch: str = "e1", tokenizer: str = "sha256:aa"
    ) -> set[int]:
        """A worker reports; the numbers of what it is told of."""
        contract = msgspec.structs.replace(hello().contract, tokenizer=tokenizer)
        said: Hello = hello(name, epoch=epoch, contract=contract)
        now = msgspec.structs.replace(state(0), phase=phase)
        self.leaving.note(said, now, model=MODEL, promised={ACME: tokens})
        return {array("I", one.ids)[0] for one in self.leaving.part(said, now)}


def test_what_nobody_else_holds_is_told_to_a_ready_worker_once() -> None:
    pool = Pool("demo-0", "demo-1")
    pool.heat(1, "demo-0")
    pool.heat(2, "demo-0", "demo-1")
    pool.heat(3, "demo-1")
    pool.heat(4, "demo-0", tenant="other")
    assert pool.says("demo-1", Phase.READY) == set()
    assert pool.says("demo-0", Phase.DRAINING) == set()
    assert pool.says("demo-1", Phase.WARMING) == set()
    assert pool.says("demo-1", Phase.READY) == {1}
    assert pool.says("demo-0", Phase.DRAINING) == pool.says("demo-1", Phase.READY) == set()
    assert value(pool.metrics, "contract_copied_prefixes_total") == 1


def test_a_worker_of_another_contract_is_told_nothing() -> None:
    pool = Pool("demo-0", "demo-1")
    pool.heat(1, "demo-0")
    pool.says("demo-0", Phase.DRAINING)
    assert pool.says("demo-2", Phase.READY, tokenizer="sha256:bb") == set(), "these ids are no text of its model"
    assert pool.says("demo-1", Phase.READY) == {1}


def test_ready_workers_share_it() -> None:
    pool = Pool("demo-0", "demo-1", "demo-2", "demo-3")
    for number in range(1, 8):
        pool.heat(number, "demo-0", times=10 - number)
    pool.says("demo-0", Phase.DRAINING)
    parts = [pool.says(f"demo-{number}", Phase.READY) for number in (1, 2, 3)]
    assert parts == [{1, 2, 3}, {4, 5}, {6, 7}]
    assert pool.says("demo-1", Phase.READY) == set()


def test_what_two_draining_workers_hold_is_lost_as_well() -> None:
    pool = Pool("demo-0", "demo-1", "demo-2")
    pool.heat(1, "demo-0", "demo-1")
    pool.says("demo-0", Phase.DRAINING)
    assert pool.says("demo-2", Phase.READY) == set(), "the other one has it"
    pool.says("demo-1", Phase.DRAINING)
    assert pool.says("demo-2", Phase.READY) == {1}


def test_shares_and_the_time_bound_it_hottest_first() -> None:
    pool = Pool("demo-0", "demo-1")
    for number in (1, 2, 3):
        pool.heat(number, "demo-0", times=10 - number)
    pool.says("demo-0", Phase.DRAINING, tokens=2 * BLOCK)
    assert pool.says("demo-1", Phase.READY) == {1, 2}
    slow = Pool("demo-0", "demo-1", rate=BLOCK / LEAVE_SECONDS)
    for number in (1, 2, 3):
        slow.heat(number, "demo-0", times=10 - number)
    slow.says("demo-0", Phase.DRAINING)
    assert slow.says("demo-1", Phase.READY) == {1}


def test_what_comes_too_late_is_dropped_and_the_next_drain_begins_anew() -> None:
    pool = Pool("demo-0", "demo-1")
    pool.heat(1, "demo-0")
    pool.says("demo-0", Phase.DRAINING)
    pool.now = LEAVE_SECONDS + 0.1
    assert pool.says("demo-1", Phase.READY) == set()
    pool.says("demo-0", Phase.READY, epoch="e2")
    pool.says("demo-0", Phase.DRAINING, epoch="e2")
    assert pool.says("demo-1", Phase.READY) == {1}


def test_what_a_lost_worker_alone_held_is_told_to_those_that_stay() -> None:
    pool = Pool("demo-0", "demo-1", "demo-2")
    for number in (1, 2):
        pool.heat(number, "demo-0", times=10 - number)
    pool.heat(3, "demo-0", "demo-2")
    assert pool.says("demo-1", Phase.READY) == set()
    pool.ready = {"demo-1", "demo-2"}
    for held in pool.held.values():
        held.discard("demo-0")  # its blocks are forgotten with it
    assert pool.says("demo-1", Phase.READY) == set(), "who is ready is looked at once a second"
    pool.now = LOOK_SECONDS
    assert pool.says("demo-1", Phase.READY) == {1}
    assert pool.says("demo-2", Phase.READY) == {2}
    pool.now += LOOK_SECONDS
    assert pool.says("demo-1", Phase.READY) == set(), "once"


def test_a_worker_that_drained_is_not_lost_when_it_is_gone() -> None:
    pool = Pool("demo-0", "demo-1")
    pool.heat(1, "demo-0")
    pool.says("demo-1", Phase.READY)
    pool.says("demo-0", Phase.DRAINING)
    assert pool.says("demo-1", Phase.READY) == {1}
    pool.ready, pool.now = {"demo-1"}, LOOK_SECONDS
    assert pool.says("demo-1", Phase.READY) == set()


def test_a_worker_that_comes_back_may_be_lost_again() -> None:
    pool = Pool("demo-0", "demo-1")
    pool.heat(1, "demo-0")
    for _ in range(2):
        pool.ready, pool.now = {"demo-0", "demo-1"}, pool.now + LOOK_SECONDS
        assert pool.says("demo-0", Phase.READY) == set()
        pool.ready, pool.now = {"demo-1"}, pool.now + LOOK_SECONDS
        assert pool.says("demo-1", Phase.READY) == {1}
