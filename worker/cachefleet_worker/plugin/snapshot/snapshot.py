"""Sends snapshots of the resident blocks from a thread of their own; installs the publisher proxy (publisher_proxy.py).

The API server opens a socket and calls; the engine's thread only copies the ledger's dictionaries. Another thread then
orders, encodes and writes slices of the copy, and lets the engine's thread run between them.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from cachefleet_worker.plugin.capabilities import OFF
from cachefleet_worker.plugin.engine_state import EngineState
from cachefleet_worker.plugin.snapshot import window_events
from cachefleet_worker.plugin.snapshot.ancestry import Hash
from cachefleet_worker.plugin.snapshot.cache_groups import cache_groups, hash_lookahead
from cachefleet_worker.plugin.snapshot.event_batches import END, Header, batches, framed
from cachefleet_worker.plugin.snapshot.publisher_proxy import HEARTBEAT, SNAPSHOT, Copies, PointInTime, PublisherProxy
from cachefleet_worker.plugin.snapshot.resident_ledger import ResidentLedger

log = logging.getLogger("vllm.cachefleet")

MODE: Final = "thread"
STALLED_SECONDS: Final = 5.0
"""A reader that reads nothing for so long counts as gone."""
REST_SECONDS: Final = 0.0005
"""Shortest pause after a slice; else as long as the slice took, so that the engine gets at least half of the time."""


class SnapshotCall(Struct, frozen=True):
    """The API server's call: path of the socket on which it listens."""

    path: str


class SnapshotCallResult(Struct, frozen=True):
    """The engine's answer. ``busy``: a snapshot of this rank is being sent, retry; ``reason``: why it is off."""

    started: bool
    busy: bool = False
    reason: str = ""


class Snapshots:
    """Sends one snapshot at a time."""

    def __init__(self, state: EngineState, proxy: PublisherProxy, ledger: ResidentLedger) -> None:
        self._state = state
        self._proxy = proxy
        self._ledger = ledger
        self._thread: threading.Thread | None = None

    def start(self, payload: bytes) -> bytes:
        """The call ``snapshot``: copy the ledger, and send it from another thread."""
        ask = msgspec.msgpack.decode(payload, type=SnapshotCall)
        return msgspec.msgpack.encode(self._start(ask))

    def _start(self, ask: SnapshotCall) -> SnapshotCallResult:
        if not self._state.faults.on(SNAPSHOT):
            return SnapshotCallResult(started=False, reason="off after a fault")
        if self._thread is not None and self._thread.is_alive():
            return SnapshotCallResult(started=False, busy=True)
        self._state.publish_events()
        point = self._proxy.point()
        self._thread = threading.Thread(
            target=self._run, args=(point, ask.path), name="cachefleet-snapshot", daemon=True
        )
        self._thread.start()
        return SnapshotCallResult(started=True)

    def _run(self, point: PointInTime, path: str) -> None:
        with self._state.faults.guard(SNAPSHOT):
            try:
                self._send(point, path)
            except OSError as error:  # the reader is gone, or too slow
                self._state.counts["snapshots_unread"] += 1
                log.info("cachefleet: snapshot not taken to its end: %s", error)
            else:
                self._state.counts["snapshots"] += 1

    def _send(self, point: PointInTime, path: str) -> None:
        end = time.monotonic() + self._state.settings.snapshot_timeout_seconds
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as out:
            out.settimeout(STALLED_SECONDS)
            out.connect(path)
            out.sendall(framed(msgspec.msgpack.encode(self._header(point))))
            for frame in rested(batches(point.copies, rank=self._state.rank, now=time.time())):
                if time.monotonic() > end:
                    raise TimeoutError("it took too long")
                out.sendall(framed(frame))
            out.sendall(END)

    def _header(self, point: PointInTime) -> Header:
        return Header(self._state.boot, self._state.rank, point.sequence, point.blocks, point.totals)

    # Stats and audit

    def stats(self) -> dict[str, Any]:
        """Fields for the stats: last sequence number, removals held back."""
        return {"sequence": self._proxy.sequence, "removals_held_back": self._proxy.held_back}

    def audit(self) -> dict[str, Any]:
        """Fields for the audit: the ledger against the pool's own table, in device blocks by group."""
        self._state.publish_events()
        table = pool_hashes(self._state.scheduler.kv_cache_manager.block_pool)
        kept = self._ledger.device_hashes()
        return {
            "sequence": self._proxy.sequence,
            "blocks_cached": len(table),
            "ledger_missing": len(table - kept),
            "ledger_extra": len(kept - table),
        }


def rested(frames: Iterator[bytes]) -> Iterator[bytes]:
    """The frames, with a pause before each in which other threads may run."""
    started = time.perf_counter()
    for frame in frames:
        time.sleep(max(REST_SECONDS, time.perf_counter() - started))
        yield frame
        started = time.perf_counter()


def install(scheduler: Any, state: EngineState) -> Snapshots | None:
    """Put the proxy before the publisher. None, with the reason, where the engine publishes no events."""
    manager = scheduler.kv_cache_manager
    state.groups, state.lookahead = cache_groups(manager), hash_lookahead(manager.block_pool)
    if not state.enabled(SNAPSHOT):
        return None
    inner = scheduler.kv_event_publisher
    if type(inner).__name__ == "NullEventPublisher":
        for feature in (SNAPSHOT, HEARTBEAT):
            state.capabilities.add(feature, OFF, "the engine publishes no block events")
        return None
    named = window_events.install(manager.block_pool, state.groups, lambda: state.faults.guard(SNAPSHOT))
    ledger = ResidentLedger(named=named)
    copies = _copies(scheduler)
    proxy = PublisherProxy(inner, ledger, state.faults, boot=state.boot, copies=copies)
    snapshots = Snapshots(state, proxy, ledger)
    scheduler.kv_event_publisher = proxy
    state.calls["snapshot"] = snapshots.start
    state.on_stats(snapshots.stats)
    state.on_audit(snapshots.audit)
    state.capabilities.add(SNAPSHOT, MODE, "" if copies else "a removal may be of one copy of several: not held back")
    _start_heartbeats(state, proxy)
    return snapshots


def _start_heartbeats(state: EngineState, proxy: PublisherProxy) -> None:
    if not state.enabled(HEARTBEAT):
        return
    with state.faults.guard(HEARTBEAT):
        proxy.start_heartbeats(state.settings.heartbeat_seconds)
        state.capabilities.add(HEARTBEAT, "mark")


def _copies(scheduler: Any) -> Copies | None:
    """The filter of removals, where this vLLM makes its removal events in the known place."""
    pool = scheduler.kv_cache_manager.block_pool
    return Copies(pool, outer_hash) if hasattr(pool, "_emit_block_removed_events") else None


def outer_hash(block_hash: Any) -> tuple[Hash, int]:
    """A hash of the pool as events show it, with its group."""
    from vllm.v1.core.kv_cache_utils import (  # noqa: PLC0415 - vLLM is there when this runs
        get_block_hash,
        get_group_id,
        maybe_convert_block_hash,
    )

    return maybe_convert_block_hash(get_block_hash(block_hash)), get_group_id(block_hash)


def pool_hashes(pool: Any) -> set[tuple[int, Hash]]:
    """(group, hash) of every block in the pool's table."""
    found = (outer_hash(block_hash) for block_hash in pool.cached_block_hash_to_block._cache)  # noqa: SLF001
    return {(group, block_hash) for block_hash, group in found}
