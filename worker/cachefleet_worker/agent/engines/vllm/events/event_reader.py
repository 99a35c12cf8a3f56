"""Decodes event batches and applies them to the held blocks: pure.

The follower decides when a batch is applied or a snapshot adopted; what a batch holds besides events (a mark, an
unreadable part) is the follower's next input.
"""

from __future__ import annotations

from collections import Counter

from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.vllm.events.kv_events import BatchError, Mark, decode_batch, read_mark
from cachefleet_worker.agent.engines.vllm.events.messages import Marked, UnreadableBatch


class EventReader:
    """One rank's reader. With ``snapshots``, a batch that cannot be read changes nothing: a snapshot replaces it."""

    def __init__(self, residents: Residents, *, snapshots: bool) -> None:
        self._residents = residents
        self._snapshots = snapshots
        self._draft: Residents | None = None
        self._counts: Counter[str] = Counter()

    def apply(self, payload: bytes) -> Marked | UnreadableBatch | None:
        """Apply the next batch; returns its mark, or that it could not be read, else None."""
        try:
            batch = decode_batch(payload)
        except BatchError:
            return UnreadableBatch()
        self._counts["unknown"] += batch.unknown
        self._counts["malformed"] += batch.malformed
        if self._snapshots and not batch.readable:
            return UnreadableBatch()
        self._residents.apply(batch.events)
        return self._marked(batch.mark) if batch.mark else None

    def peek(self, payload: bytes) -> Marked | None:
        """The mark of a batch that is not applied; None without one."""
        mark = read_mark(payload)
        return Marked(mark.boot) if mark else None

    def lay_ready(self, draft: Residents) -> None:
        """Keep a filled draft until ``restore``."""
        self._draft = draft

    def restore(self) -> None:
        """Adopt the draft kept last."""
        if self._draft is not None:
            self._residents.adopt(self._draft)
        self._draft = None

    def forget(self) -> None:
        """Withdraw everything held."""
        self._residents.forget()

    def counts(self) -> Counter[str]:
        """Events and blocks by outcome since the last call."""
        counts, self._counts = self._counts + self._residents.counts, Counter()
        self._residents.counts.clear()
        return counts

    def _marked(self, mark: Mark) -> Marked:
        return Marked(mark.boot, None if mark.totals is None else self._residents.agrees(mark.totals))
