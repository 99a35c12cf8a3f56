"""Tells other replicas of this one's requests in flight, and takes over what they tell: by Loads, through agents.

Where an agent says that several control planes share their load through it, each tells what changes within
TELL_SECONDS, and all that it has with each report of the worker. What is told counts in decisions as own requests do.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from cachefleet_controlplane.fleet.agent_connection import Connection
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.report_fields import Paid
from cachefleet_core.report_frames import DownFrame, FrameError, Hello, Loads, Share, SharedLoad, State

TELL_SECONDS: Final = 0.02
_MAX_PAID: Final = 256


class LoadSharing:
    """What one replica shares; ``send`` sends a frame to a worker's agent."""

    def __init__(self, registry: Registry, send: Callable[[Worker, DownFrame], object]) -> None:
        self.origin = secrets.token_hex(8)
        """Names this process."""
        self._registry = registry
        self._send = send
        self._workers: dict[int, Worker] = {}
        """Those of which others are told, by slot."""
        self._sharing: dict[int, int] = {}
        """How many replicas share through their agents."""
        self._paid: dict[int, list[Paid]] = {}
        """What was paid by waiting and is not told yet, by slot."""
        self._begun = asyncio.Event()
        self.told = self.heard = 0
        """Loads so far."""
        registry.note_paid = self._note

    def greet(self, connection: Connection, worker: Worker, hello: Hello, now: float) -> None:
        """A stream begins: its agent learns that this replica shares, and says in States how many do."""
        self.leave(worker, now)
        if hello.shares:
            connection.link.send(Share(self.origin))

    def reported(self, worker: Worker, state: State, now: float) -> None:
        """A State has come."""
        slot = worker.row.slot
        if state.sharing <= 1:
            self.leave(worker, now)
            return
        if state.sharing > self._sharing.get(slot, 0):  # one that comes knows of nothing yet
            self._workers[slot] = worker
            worker.row.share(shared=True, now=now)
        self._sharing[slot] = state.sharing
        if worker.row.open:
            self._begun.set()

    def leave(self, worker: Worker, now: float) -> None:
        """Nobody is told of a worker's requests any more."""
        if self._workers.pop(worker.row.slot, None) is not None:
            self._paid.pop(worker.row.slot, None)
            del self._sharing[worker.row.slot]
            worker.row.share(shared=False, now=now)

    def begun(self, worker: Worker) -> None:
        """A request was sent there."""
        if worker.row.slot in self._workers:
            self._begun.set()

    def _note(self, worker: Worker, prefix: bytes, seconds: float) -> None:
        """A request sent there waits so much longer for a prefix; 0: it computes a copy."""
        slot = worker.row.slot
        if slot in self._workers:
            paid = self._paid.setdefault(slot, [])
            if len(paid) < _MAX_PAID:
                paid.append(Paid(prefix, seconds))

    def tell(self, now: float) -> bool:
        """Tell others what has changed; whether there may soon be more."""
        loads, more = self._registry.plane.tell(now)
        for slot, (whole, flights, ended, failed) in loads:
            worker, paid = self._workers[slot], self._paid.pop(slot, ())
            load = SharedLoad(
                rank=worker.rank,
                origin=self.origin,
                whole=whole,
                flights=flights,  # type: ignore[arg-type]  # as they are encoded
                ended=tuple(ended),
                failed=tuple(failed),
                paid=tuple(paid),
            )
            self._send(worker, load)
            self.told += 1
        return more

    async def run(self, clock: Callable[[], float]) -> None:
        """Tell others for ever, as soon as there is something, and every TELL_SECONDS while there may be more."""
        while True:
            await self._begun.wait()
            self._begun.clear()
            while self.tell(clock()):  # noqa: ASYNC110 - native code knows when requests change
                await asyncio.sleep(TELL_SECONDS)

    def hear(self, connection: Connection, loads: Loads, now: float) -> bool:
        """Others have told of theirs; whether any of these requests is over. FrameError."""
        ended = False
        for load in loads.loads:
            worker = connection.ranks.get(load.rank)
            if worker is None or worker.hello is None or load.origin == self.origin:
                continue
            try:
                ended |= worker.row.hear(load.origin, load, worker.hello.contract.block_size, now)
            except (TypeError, ValueError) as error:
                raise FrameError(f"loads: {error}") from error
            self._pay(load, now)
            self.heard += 1
        return ended

    def _pay(self, load: SharedLoad, now: float) -> None:
        waiting = self._registry.paid_waiting
        for paid in load.paid:
            if paid.seconds:
                waiting.add(paid.prefix, paid.seconds, now)
            else:
                waiting.spend(paid.prefix)
