"""Texts of prompts sent to each worker, as a substitute for its block keys where those are not known.

A worker is assumed to hold the texts sent to it last, as many as its cache has room for. Other evictions are not known;
a new epoch begins with nothing. Owned by one event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cachefleet_native import RecentKeys

from cachefleet_controlplane.index.block_index import BlockIndex, IndexFullError
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES
from cachefleet_core.report_frames import Removed, Stored

MAX_CHUNKS: Final = 262_144
"""Chunks of one worker, whatever its size: 128 MiB of text."""


class SentTexts:
    """Keys of text chunks by worker, those sent last."""

    def __init__(self, index: BlockIndex) -> None:
        self._index = index
        self._sent: dict[WorkerId, tuple[str, RecentKeys]] = {}

    def sent(self, worker: WorkerId, epoch: str, keys: bytes, *, room: int) -> None:
        """A prompt was sent to a worker with room for ``room`` chunks; another epoch begins with nothing."""
        known = self._sent.get(worker)
        if known is None or known[0] != epoch:
            self.forget(worker)
            known = self._sent[worker] = (epoch, RecentKeys())
        most = max(0, min(room, MAX_CHUNKS))
        keys = keys[: KEY_BYTES * most]
        # The end of a prompt is evicted before its beginning, as in an engine.
        new, dropped = known[1].use(keys, most)
        if new and not self._store(worker, keys):
            self.forget(worker)
        elif dropped:
            self._index.apply(worker, Removed(dropped))

    def match(self, keys: bytes, workers: Sequence[WorkerId]) -> list[int]:
        """How many of a prompt's first chunks were sent to each worker."""
        return self._index.match(keys, workers)

    def follow(self, worker: WorkerId, epoch: str) -> None:
        """Set a worker's epoch: texts sent in another one are dropped."""
        if worker in self._sent and self._sent[worker][0] != epoch:
            self.forget(worker)

    def forget(self, worker: WorkerId) -> None:
        """Drop a worker's texts."""
        self._sent.pop(worker, None)
        self._index.forget(worker)

    def keep(self, workers: Sequence[WorkerId]) -> None:
        """Drop the texts of all other workers."""
        for worker in self._sent.keys() - set(workers):
            self.forget(worker)

    def _store(self, worker: WorkerId, keys: bytes) -> bool:
        try:
            self._index.apply(worker, Stored(0, keys))
        except IndexFullError:
            return False
        return True
