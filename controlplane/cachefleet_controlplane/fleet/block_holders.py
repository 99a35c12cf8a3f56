"""Which workers hold a prefix of which the first and the last block are known."""

from __future__ import annotations

from cachefleet_controlplane.index.protocol import BlockIndex, WorkerId
from cachefleet_controlplane.routing.reservations import KEY_BYTES
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.hit_rule import last_keys


class BlockHolders:
    """Reads the index; changes nothing."""

    def __init__(self, index: BlockIndex, registry: Registry) -> None:
        self._index = index
        self._registry = registry

    def of(self, model: str, first: bytes, last: bytes) -> list[WorkerId]:
        """The workers of a model that hold both blocks, by packed keys, and the last of each window; sorted.

        Engines evict a prompt from its end, so who holds these holds nearly always what lies between.
        """
        workers = [worker for pool in self._registry.fleet(model) for worker in pool.workers.values()]
        return sorted(worker.id for worker in workers if self._holds(worker, first, last))

    def _holds(self, worker: Worker, first: bytes, last: bytes) -> bool:
        rule = worker.rule
        keys = (first + (last if last != first else b"") if rule.full else b"") + last_keys(rule, last)
        (held,) = self._index.match(keys, [worker.id])
        return held * KEY_BYTES == len(keys)
