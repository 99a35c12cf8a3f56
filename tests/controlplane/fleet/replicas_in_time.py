"""Replicas of one fleet in virtual time, and the agents through which they share their load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw

from cachefleet_controlplane.index.frame_ingest import read
from cachefleet_core.report_frames import DownFrame, LoadHead, Loads, PassedLoads, SharedLoad, decode_down, encode
from tests.controlplane.fleets import FakeLink, LiveFleet, fleet_of, wid
from tests.controlplane.frames import state


@dataclass
class Replica:
    """A live fleet, and what its links were told so far."""

    fleet: LiveFleet
    links: dict[str, FakeLink]
    read: dict[str, int] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        return self.fleet._agents.sharing.origin

    def said(self) -> list[tuple[str, SharedLoad]]:
        """The Loads since the last call, by worker."""
        found = [(name, frame) for name, link in self.links.items() for frame in self._new(name, link)]
        return [(name, frame) for name, frame in found if isinstance(frame, SharedLoad)]

    def _new(self, name: str, link: FakeLink) -> Sequence[DownFrame]:
        begun = self.read.get(name, 0)
        self.read[name] = len(link.sent)
        return link.sent[begun:]

    def own(self, worker: str, now: float) -> tuple[int, int]:
        """Its requests in flight to a worker, and their tokens not computed yet."""
        row = self.row(worker)
        return row.open, row.tokens(now)

    def row(self, worker: str) -> Any:
        known = self.fleet._registry.worker(wid(worker))
        assert known is not None
        return known.row


class Replicas:
    """Some replicas, whose clocks are one."""

    def __init__(self, count: int = 2, workers: Sequence[str] = ("demo-0", "demo-1"), **load: Any) -> None:
        self.workers, self.load = tuple(workers), load
        self.now = 1000.0
        self.alive: list[Replica] = []
        for _ in range(count):
            self.join()

    def join(self) -> Replica:
        """One more, which every agent finds."""
        made = fleet_of(*self.workers)
        made.now = self.now
        links = {
            name: made.report(name, shares=True, sharing=len(self.alive) + 1, **self.load) for name in self.workers
        }
        self.alive.append(Replica(made, links))
        self.report()
        return self.alive[-1]

    def die(self, replica: Replica) -> None:
        """Nothing is heard of it from now on, and agents do not notice."""
        self.alive.remove(replica)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for replica in self.alive:
            replica.fleet.now = self.now

    def report(self, worker: str = "", **load: Any) -> None:
        """All workers, or one, report to every replica."""
        for name in (worker,) if worker else self.workers:
            for replica in self.alive:
                digest = replica.fleet.index.digest(wid(name))
                told = state(0, digest=digest, sharing=len(self.alive), **self.load | load)
                replica.fleet.receive(replica.links[name].connection, told)

    def exchange(self, *, lost: bool = False) -> int:
        """Each tells what it has to, which agents pass on as bytes; how many Loads."""
        told = 0
        for replica in self.alive:
            replica.fleet.tell_others()
            said = replica.said()
            told += len(said)
            for worker, load in said if not lost else ():
                self.pass_on(replica, worker, load)
        return told

    def pass_on(self, sender: Replica, worker: str, load: SharedLoad) -> None:
        data = encode(load)
        assert decode_down(data) == LoadHead(load.origin, load.rank)
        for other in self.alive:
            if other is not sender:
                frame = read(encode(PassedLoads((Raw(data),))))
                assert isinstance(frame, Loads)
                other.fleet.hear(other.links[worker].connection, frame)
