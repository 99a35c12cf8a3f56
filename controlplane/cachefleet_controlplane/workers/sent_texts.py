"""Texts of prompts sent to each worker, as a substitute for its block keys where those are not known.

A worker is assumed to hold the texts sent to it last, as many as its cache has room for. Other evictions are not known;
a new epoch begins with nothing. Owned by one event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from cachefleet_controlplane.index.block_index import BlockIndex, IndexFullError
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_core.block_keys import pack_keys, unpack_keys
from cachefleet_core.report_frames import Removed, Stored

MAX_CHUNKS: Final = 262_144
"""Chunks of one worker, whatever its size: 128 MiB of text."""


class SentTexts:
    """Keys of text chunks by worker, those sent last."""

    def __init__(self, index: BlockIndex) -> None:
        self._index = index
        self._sent: dict[WorkerId, tuple[str, OrderedDict[int, None]]] = {}

    def sent(self, worker: WorkerId, epoch: str, keys: bytes, *, room: int) -> None:
        """A prompt was sent to a worker with room for ``room`` chunks; another epoch begins with nothing."""
        known, held = self._sent.get(worker, ("", OrderedDict[int, None]()))
        if known != epoch:
            self.forget(worker)
            held = OrderedDict()
        self._sent[worker] = (epoch, held)
        chunks = unpack_keys(keys)[: max(0, min(room, MAX_CHUNKS))]
        if chunks and not self._store(worker, chunks, held):
            self.forget(worker)
            return
        self._evict(worker, held, len(held) - min(room, MAX_CHUNKS))

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

    def _store(self, worker: WorkerId, chunks: Sequence[int], held: OrderedDict[int, None]) -> bool:
        if not held.keys() >= set(chunks):  # else the index has all of them
            try:
                self._index.apply(worker, Stored(0, pack_keys(chunks)))
            except IndexFullError:
                return False
        # The end of a prompt is evicted before its beginning, as in an engine.
        for chunk in reversed(chunks):
            held[chunk] = None
            held.move_to_end(chunk)
        return True

    def _evict(self, worker: WorkerId, held: OrderedDict[int, None], count: int) -> None:
        if count > 0:
            oldest = [held.popitem(last=False)[0] for _ in range(count)]
            self._index.apply(worker, Removed(pack_keys(oldest)))
