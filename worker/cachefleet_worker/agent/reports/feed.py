"""Distributes the ranks' report frames to all connections: a bounded queue each, and a snapshot after an overflow."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.reports.load_relay import LoadRelay, Passing
from cachefleet_worker.agent.reports.stream import Stream, WorkerState


class Outbox:
    """Send queue of one connection; ``take`` waits for frames.

    It starts with Hello, Snapshot and State of every rank, and starts again so after an overflow or with a new epoch.
    """

    def __init__(self, feed: Feed, *, max_frames: int, max_bytes: int, overflowed: Callable[[], None]) -> None:
        self._feed = feed
        self._max_frames = max_frames
        self._max_bytes = max_bytes
        self._overflowed = overflowed
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._opening = True
        self._resync: set[int] = set()
        self._ready = asyncio.Event()
        self._ready.set()
        self.passing = Passing(self._ready.set)
        """What other control planes say of their load."""

    def put(self, frames: Iterable[bytes]) -> None:
        """Queue frames; past the bounds, drop the queue and start again with snapshots."""
        if self._opening:
            return  # the snapshot to come holds these changes
        for frame in frames:
            self._frames.append(frame)
            self._bytes += len(frame)
        if len(self._frames) > self._max_frames or self._bytes > self._max_bytes:
            self._overflowed()
            self.reopen()
        self._ready.set()

    def reopen(self) -> None:
        """Drop the queue and start again with Hello and Snapshot."""
        self._clear()
        self._opening = True
        self._resync.clear()
        self._ready.set()

    def resync(self, rank: int) -> None:
        """Add a snapshot of one rank to the frames sent next."""
        self._resync.add(rank)
        self._ready.set()

    async def take(self) -> list[bytes]:
        """All queued frames; waits until there are some."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            if frames := self._gather():
                return frames

    def _gather(self) -> list[bytes]:
        if self._opening:
            frames = self._feed.opening()
            self._opening = not frames  # there is nothing to send before the first epoch
        else:
            snapshots = [frame for rank in sorted(self._resync) for frame in self._feed.snapshot(rank)]
            frames = [*self._frames, *snapshots, *self.passing.take()]
        self._clear()
        self._resync.clear()
        return frames

    def _clear(self) -> None:
        self._frames.clear()
        self._bytes = 0


class Feed:
    """The streams of the present epoch, and the send queues of all connections."""

    def __init__(self, metrics: AgentMetrics) -> None:
        self._metrics = metrics
        self._worker_state: Callable[[int], WorkerState] | None = None
        self._streams: Mapping[int, Stream] = {}
        self._outboxes: set[Outbox] = set()
        self.relay = LoadRelay(self.publish_state)
        """Control planes that share their load."""
        self.begun = asyncio.Event()
        """Set from the first epoch on."""

    @property
    def streams(self) -> Mapping[int, Stream]:
        """Report stream of each rank in the present epoch; empty before the first."""
        return self._streams

    def attach(self, *, max_frames: int, max_bytes: int) -> Outbox:
        """Add a connection's send queue, with bounds in frames and bytes."""
        outbox = Outbox(self, max_frames=max_frames, max_bytes=max_bytes, overflowed=self._metrics.overflows.inc)
        self._outboxes.add(outbox)
        return outbox

    def detach(self, outbox: Outbox) -> None:
        """Remove a connection's send queue."""
        self._outboxes.discard(outbox)
        self.relay.leave(outbox.passing, self._streams)

    def begin(self, streams: Mapping[int, Stream], worker_state: Callable[[int], WorkerState]) -> None:
        """Begin an epoch: every connection starts again. ``worker_state`` is called for what each State reports."""
        self._streams, self._worker_state = streams, worker_state
        self.begun.set()
        self._reopen()

    def flush(self) -> None:
        """Queue the changes since the last call for all connections."""
        for rank, stream in self._streams.items():
            self._send(stream.deltas(), "delta")
            if stream.renewed():
                self._reopen()
            self._metrics.held.labels(rank).set(stream.residents.held)

    def removed(self) -> float:
        """The greatest share of a rank's blocks that was removed since the last flush."""
        return max((stream.residents.removed for stream in self._streams.values()), default=0.0)

    def publish_state(self) -> None:
        """Queue the changes and a State of every rank for all connections."""
        self.flush()
        self._send(self._states(), "state")

    def opening(self) -> list[bytes]:
        """Hello, Snapshot and State of every rank; empty before the first epoch."""
        self.flush()
        frames = [frame for stream in self._streams.values() for frame in stream.opening()]
        self._metrics.frames.labels("opening").inc(len(frames))
        return frames + self._states()

    def snapshot(self, rank: int) -> list[bytes]:
        """Snapshot frames of a rank; empty where there is no such rank. Flushes changes first."""
        stream = self._streams.get(rank)
        if stream is None:
            return []
        self.flush()
        return stream.snapshot()

    def _reopen(self) -> None:
        for outbox in self._outboxes:
            outbox.reopen()

    def _states(self) -> list[bytes]:
        state = self._worker_state
        if state is None:
            return []
        return [stream.state(state(rank), len(self.relay)) for rank, stream in self._streams.items()]

    def _send(self, frames: list[bytes], kind: str) -> None:
        if not frames:
            return
        self._metrics.frames.labels(kind).inc(len(frames))
        for outbox in self._outboxes:
            outbox.put(frames)
