"""From an engine's events to the index, every part real but the sockets: what the index holds, the engine holds.

The agent's own machine (engine events lost, delayed, replayed; engines restarting) drives it; its receiver is
exchanged for the wire, the residency and the index, over a line that loses, repeats and breaks by the clock.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, settings

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.report_streams.report_stream import StreamState
from cachefleet_core.block_keys import BlockKey, Tier
from cachefleet_core.report_frames import (
    MAX_OPERATIONS,
    Delta,
    Hello,
    Loads,
    Operation,
    Snapshot,
    Stored,
    UpFrame,
    decode_up,
    encode,
)
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from tests.controlplane.fleets import FakeLink, LiveFleet, fleet_of, wid
from tests.controlplane.frames import hello, state
from tests.reference.block_index import ReferenceIndex
from tests.worker.agent.engines.vllm.events.test_follower_property import FollowerMachine

WORKER = wid("demo-0")


class WatchedIndex(BlockIndex):
    """The index, beside the reference, which can say what it holds: both are given the same."""

    def __init__(self) -> None:
        super().__init__()
        self.reference = ReferenceIndex()

    def ingest(self, worker: WorkerId, delta: bytes) -> None:
        super().ingest(worker, delta)
        self.reference.ingest(worker, delta)

    def replace(self, worker: WorkerId, parts: Sequence[bytes]) -> None:
        super().replace(worker, parts)
        self.reference.replace(worker, parts)

    def forget(self, worker: WorkerId) -> None:
        super().forget(worker)
        self.reference.forget(worker)

    def digest(self, worker: WorkerId) -> int:
        digest = super().digest(worker)
        assert digest == self.reference.digest(worker)
        return digest


class FleetReceiver:
    """Takes operations as the machine's own receiver does, by way of frames and a fleet."""

    def __init__(self, fleet: LiveFleet, residents: Residents, epoch: int) -> None:
        self._fleet = fleet
        self._residents = residents
        self._epoch = f"e{epoch}"
        self._sequence = 0
        self._connect()

    @property
    def held(self) -> set[tuple[BlockKey, Tier]]:
        assert isinstance(self._fleet.index, WatchedIndex)
        return {(BlockKey(key), tier) for key, tier in self._fleet.index.reference.blocks(WORKER)}

    @property
    def keys(self) -> set[BlockKey]:
        return {key for key, _ in self.held}

    @property
    def digest(self) -> int:
        return int(self._fleet.index.digest(WORKER))

    def apply(self, operations: Sequence[Operation]) -> None:
        self._sequence += 1
        sent = encode(Delta(sequence=self._sequence, operations=tuple(operations[:MAX_OPERATIONS])))
        if self._sequence % 11 == 0:
            self._connect()
        elif self._sequence % 5:
            for _ in range(2 if self._sequence % 7 == 0 else 1):
                self._say(decode_up(sent))
        self._report()

    def _connect(self) -> None:
        self._link = FakeLink()
        self._connection = self._fleet.connect(self._link)
        self._say(hello(epoch=self._epoch))
        self._snapshot()
        self._report()

    def _report(self) -> None:
        """Say how things stand, and do what is asked for until nothing is."""
        self._say(state(self._sequence, digest=self._residents.digest, held=self._residents.held))
        while self._link.resyncs():
            self._link.sent.clear()
            self._snapshot()
            self._say(state(self._sequence, digest=self._residents.digest, held=self._residents.held))

    def _snapshot(self) -> None:
        chains = tuple(self._residents.snapshot())
        middle = len(chains) // 2
        for part, (some, last) in enumerate([(chains[:middle], False), (chains[middle:], True)]):
            self._say(decode_up(encode(_part(self._sequence, part, some, last=last))))

    def _say(self, frame: UpFrame) -> None:
        if isinstance(frame, Hello):
            self._fleet.hello(self._connection, frame)
        elif not isinstance(frame, Loads):
            self._fleet.receive(self._connection, frame)


def _part(sequence: int, part: int, chains: Sequence[Stored], *, last: bool) -> UpFrame:
    return Snapshot(sequence=sequence, part=part, last=last, chains=tuple(chains))


class WholePathMachine(FollowerMachine):
    """The agent's machine with the control plane behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = fleet_of("demo-0", make_index=WatchedIndex)
        self.lives = 0

    def _fresh_residents(self) -> None:
        super()._fresh_residents()
        self.lives += 1
        self.receiver: Any = FleetReceiver(self.fleet, self.residents, self.lives)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "engine"):
            assert self.fleet.worker().stream == StreamState.LIVE


WholePathMachine.TestCase.settings = settings(
    max_examples=settings().max_examples,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestWholePath = WholePathMachine.TestCase
