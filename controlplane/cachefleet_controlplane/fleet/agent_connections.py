"""Agents' connections: applies their frames to index and registry; sends policies, warm prefixes and resyncs."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

import cachefleet_native
from msgspec.structs import replace

from cachefleet_controlplane.fleet.agent_connection import Connection, Link
from cachefleet_controlplane.fleet.load_sharing import LoadSharing
from cachefleet_controlplane.index.block_index import BlockIndex, IndexDefectError, IndexFullError
from cachefleet_controlplane.index.frame_ingest import Report
from cachefleet_controlplane.index.worker_id import worker_id
from cachefleet_controlplane.pools.block_bounds import BELOW_FACTOR, excess, most_blocks
from cachefleet_controlplane.report_streams.report_stream import (
    Accept,
    Apply,
    ConnectionClosed,
    ConnectionOpened,
    Count,
    Drop,
    Effect,
    Received,
    Replace,
    ReportStream,
    RequestResync,
    StreamEvent,
    StreamInput,
    StreamState,
    Tick,
)
from cachefleet_controlplane.report_streams.stream_state_machine import spoil, step
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.report_frames import DownFrame, FrameError, Hello, State

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.5
MAX_RANKS: Final = 256
"""Streams of one connection, however many ranks its pool declares."""


class RefusedError(Exception):
    """A connection must be closed; ``code`` is one of ``report_limits.CLOSE_CODES``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class UndeclaredRankError(Exception):
    """A rank that its worker's pool does not declare: to be left out, while the worker's other ranks are heard."""


class AgentConnections:
    """Runs ``stream_state_machine`` for each stream and carries out its effects."""

    def __init__(self, index: BlockIndex, registry: Registry) -> None:
        self._index = index
        self._registry = registry
        self._connections: dict[int, Connection] = {}
        self._numbers = 0
        self._ticked_at = float("-inf")
        self.sharing = LoadSharing(registry, self.send)
        """What other replicas are told of requests in flight, and tell."""
        self.taps = cachefleet_native.ReportTaps(index.native)
        """For the server of agents' connections: native code applies the Deltas of live streams."""
        self.events: Counter[StreamEvent] = Counter()
        """Events of all streams so far."""
        self.refused_frames = 0
        """Frames that the index found malformed; nothing of them was applied."""
        self.shed_frames = 0
        """Frames not applied because their worker's blocks are left out of the index until its next epoch."""
        self.excess_claims = 0
        """Frames after which a worker claimed more blocks than it can hold; all its blocks are left out then."""

    def connect(self, link: Link, *, pod: str = "", tap: cachefleet_native.ReportTap | None = None) -> Connection:
        """Add a connection; each has a greater number than those before it."""
        self._numbers += 1
        connection = self._connections[self._numbers] = Connection(self._numbers, link, pod, tap=tap)
        return connection

    def hello(self, connection: Connection, hello: Hello, now: float) -> list[StreamEvent]:
        """Begin a stream; its events. RefusedError, UndeclaredRankError: no stream has changed."""
        worker = self._welcome(connection, hello)
        pool = self._registry.pools[hello.pool]
        self._supersede(worker, connection)
        connection.ranks[hello.rank] = worker
        self._take_over(worker)
        worker.live = connection.tap and connection.tap.stream(hello.rank, worker.id, worker.row, worker.history)
        if hello.epoch != worker.stream.epoch:
            worker.restarted()
        worker.announced(hello, pod=connection.pod)
        worker.most_blocks = max(worker.most_blocks, most_blocks(pool.declared.spec, hello.blocks_total))
        self._registry.settle(pool)
        events = self._step(worker, ConnectionOpened(connection.number, hello), now)
        self.sharing.greet(connection, worker, hello, now)
        if pool.policy_with_shares is not None:
            connection.link.send(pool.policy_with_shares)
        if pool.warm is not None and connection.warmed_epoch != hello.epoch:
            connection.warmed_epoch = hello.epoch
            connection.link.send(pool.warm)
        return events

    def receive(
        self, connection: Connection, frame: Report, now: float, place: tuple[int, int] | None = None
    ) -> list[StreamEvent]:
        """Process a frame of a stream; its events. ``place``: where native code found a State that it has kept.

        RefusedError: no Hello announced its rank; nothing has changed. FrameError: its blocks are malformed and nothing
        has changed, or those of a Delta held back before are, and the stream awaits its next snapshot.
        """
        worker = connection.ranks.get(frame.rank)
        if worker is None:
            raise RefusedError("unannounced", f"rank {frame.rank} sent no hello on this connection")
        event = Received(connection.number, frame)
        if place and worker.live and worker.live.followed:
            return self._checked(worker, event, place, now)
        return self._step(worker, event, now)

    def disconnect(self, connection: Connection, now: float) -> None:
        """Remove a closed connection; blocks of its streams stay until they are too old."""
        self._connections.pop(connection.number, None)
        for worker in connection.ranks.values():
            self._step(worker, ConnectionClosed(connection.number), now)
            self.sharing.leave(worker, now)

    def expire(self, now: float) -> None:
        """Apply report timeouts; at most every TICK_SECONDS, so cheap to call at any time."""
        if now - self._ticked_at < TICK_SECONDS:
            return
        self._ticked_at = now
        for worker in list(self._registry.workers()):
            if worker.stream.expires(now):
                self._step(worker, Tick(), now)
            if worker.endpoint is None and worker.stream.stream_state in (StreamState.UNKNOWN, StreamState.FORGOTTEN):
                self._registry.remove(worker)
                self.removed(worker, now)

    def removed(self, worker: Worker, now: float) -> None:
        """A worker was removed: drop its blocks, and close its agent's connection."""
        self._take_over(worker)
        self._index.forget(worker.id)
        self.sharing.leave(worker, now)
        connection = self._connections.get(worker.stream.connection)
        if connection is not None:
            if connection.ranks.get(worker.rank) is worker:
                del connection.ranks[worker.rank]
            connection.link.close("unknown_pool", f"{worker.pool}/{worker.name} is not in a pool any more")

    def announce_policy(self, pool: Pool) -> None:
        """Send a pool's policy to all its connected workers."""
        self._announce(pool, pool.policy_with_shares)

    def announce_warm(self, pool: Pool) -> None:
        """Send a pool's standing Warm to all its connected workers."""
        self._announce(pool, pool.warm)

    def _announce(self, pool: Pool, frame: DownFrame | None) -> None:
        numbers = {worker.stream.connection for worker in pool.workers.values()}
        for number in numbers & self._connections.keys():
            if frame is not None:
                self._connections[number].link.send(frame)

    def connected(self, worker: Worker) -> bool:
        """Whether the agent of a worker's stream is connected."""
        return worker.stream.connection in self._connections

    def send(self, worker: Worker, frame: DownFrame) -> bool:
        """Send a frame to a worker's agent; False where it is not connected."""
        connection = self._connections.get(worker.stream.connection)
        if connection is None:
            return False
        connection.link.send(frame)
        return True

    def _welcome(self, connection: Connection, hello: Hello) -> Worker:
        if connection.worker not in (None, (hello.pool, hello.worker)):
            raise RefusedError("foreign", "a connection speaks for one worker")
        pool = self._registry.pools.get(hello.pool)
        if pool is None:
            raise RefusedError("unknown_pool", f"no pool {hello.pool}")
        connection.worker = (hello.pool, hello.worker)
        declared, known = pool.declared.spec.engine.data_parallel_size, worker_id(pool.key, hello.worker, hello.rank)
        if hello.rank >= declared and known not in pool.workers:
            raise UndeclaredRankError(f"rank {hello.rank}, but the pool declares {declared} for each worker")
        if len(connection.ranks) >= MAX_RANKS and hello.rank not in connection.ranks:
            raise RefusedError("busy", f"more than {MAX_RANKS} ranks on one connection")
        worker = self._registry.announce(pool, hello.worker, hello.rank)
        if worker is None:
            raise RefusedError("busy", "too many workers that the pool source does not list")
        if worker.stream.connection > connection.number:
            raise RefusedError("superseded", "a newer connection speaks for this worker")
        return worker

    def _supersede(self, worker: Worker, connection: Connection) -> None:
        older = self._connections.get(worker.stream.connection)
        if older is not None and older is not connection:
            older.ranks.pop(worker.rank, None)
            older.link.close("superseded", "a newer connection speaks for this worker")

    def _step(self, worker: Worker, event: StreamInput, now: float) -> list[StreamEvent]:
        self._take_over(worker)
        try:
            return self._stepped(worker, event, now, self._digest(worker, event))
        finally:
            self._hand_over(worker, now)

    def _checked(self, worker: Worker, event: Received, place: tuple[int, int], now: float) -> list[StreamEvent]:
        """A State: native code has noted number and digest where it came, and goes on with what followed it."""
        sequence, digest = place
        worker.follow(replace(worker.stream, sequence=sequence))
        events = self._stepped(worker, event, now, digest)
        if worker.live and worker.stream.stream_state is not StreamState.LIVE:
            worker.live.pause()
        return events

    def _take_over(self, worker: Worker) -> None:
        """Follow a stream here; native code has applied its Deltas up to some number."""
        sequence = worker.live.pause() if worker.live else None
        if sequence is not None and sequence != worker.stream.sequence:
            worker.follow(replace(worker.stream, sequence=sequence))
            self._hold_to_bound(worker)

    def _hand_over(self, worker: Worker, now: float) -> None:
        """Have native code apply the Deltas of a stream that is live, until something else comes."""
        if worker.live and worker.stream.stream_state is StreamState.LIVE and not worker.unindexed:
            most = worker.most_blocks
            worker.live.resume(worker.stream.sequence, (most, BELOW_FACTOR * most), now)

    def _stepped(self, worker: Worker, event: StreamInput, now: float, digest: int) -> list[StreamEvent]:
        before = worker.stream
        after, effects = step(before, event, now, digest=digest, others=self._unfinished(worker, event))
        worker.follow(after)
        events = [effect.event for effect in effects if isinstance(effect, Count)]
        for number, effect in enumerate(effects):
            try:
                self._carry_out(worker, effect, now)
            except FrameError:
                self.refused_frames += 1
                self._withdraw(worker, before, now, whole=number == 0)
                raise
        self.events.update(events)
        return events

    def _withdraw(self, worker: Worker, before: ReportStream, now: float, *, whole: bool) -> None:
        """Undo the step of a refused frame; where a part of it was applied, drop all blocks instead."""
        if whole:
            worker.follow(before)
        else:
            self._index.forget(worker.id)
            worker.follow(spoil(worker.stream, now))

    def _digest(self, worker: Worker, event: StreamInput) -> int:
        """The index's digest of a stream, where the step needs it."""
        if not (isinstance(event, Received) and isinstance(event.frame, State)):
            return 0
        # The index holds none of a worker's blocks that did not fit: that is no divergence.
        return event.frame.digest if worker.unindexed else self._index.digest(worker.id)

    def _unfinished(self, worker: Worker, event: StreamInput) -> int:
        """Bytes of unfinished snapshots on the other streams of a worker's connection, where the step needs them."""
        connection = self._connections.get(worker.stream.connection)
        if connection is None or not (isinstance(event, Received) and not isinstance(event.frame, State)):
            return 0
        streams = (other.stream for other in connection.ranks.values() if other is not worker)
        return sum(stream.assembly.size for stream in streams if stream.assembly is not None)

    def _carry_out(self, worker: Worker, effect: Effect, now: float) -> None:
        match effect:
            case Accept(state):
                self._accept(worker, state, now)
            case RequestResync(frame):
                self.send(worker, frame)
            case Drop():
                self._index.forget(worker.id)
            case Apply() | Replace():
                self._change(worker, effect)

    def _change(self, worker: Worker, effect: Apply | Replace) -> None:
        if worker.unindexed:
            self.shed_frames += _frames(effect)
            return
        try:
            if isinstance(effect, Apply):
                self._index.ingest(worker.id, effect.delta.data)
            else:
                self._index.replace(worker.id, [part.data for part in effect.parts])
        except (IndexFullError, IndexDefectError) as error:
            self.shed_frames += _frames(effect)
            self._leave_out(worker, str(error))
        else:
            self._hold_to_bound(worker)

    def _hold_to_bound(self, worker: Worker) -> None:
        """Leave out a worker that claims more blocks than it can hold: it would crowd out or attract others.

        That is known only once its claim is in the index, since removals count too; a frame's size bounds it till then.
        """
        below = self._index.held_below(worker.id)
        if why := excess(self._index.held(worker.id) - below, below, worker.most_blocks):
            self.excess_claims += 1
            self._leave_out(worker, why)

    def _leave_out(self, worker: Worker, why: str) -> None:
        """Hold none of a worker's blocks until its next epoch: half of them would diverge at each report."""
        logger.warning("a worker's blocks are left out of the index: %s", why, extra={"worker": worker.id})
        self._index.forget(worker.id)
        worker.leave_out()

    def _accept(self, worker: Worker, state: State, now: float) -> None:
        worker.accept(state, now)
        self.sharing.reported(worker, state, now)
        pool = self._registry.pools.get(worker.pool)
        if pool is not None:
            queries, hits = worker.counters.advance(state)
            pool.looked_up(queries, hits, now)
            worker.look_for_unindexed_hits(pool.declared.spec, hits, state, now)


def _frames(effect: Apply | Replace) -> int:
    return 1 if isinstance(effect, Apply) else len(effect.parts)
