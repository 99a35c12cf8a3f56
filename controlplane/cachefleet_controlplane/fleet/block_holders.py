"""Which workers hold a prefix of which the first and the last block are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_core.hit_rule import HitRule, last_keys


class BlockHolders:
    """Reads the index; changes nothing."""

    def __init__(self, index: BlockIndex, registry: Registry) -> None:
        self._index = index
        self._registry = registry

    def of(self, model: str, first: bytes, last: bytes) -> list[WorkerId]:
        """The workers of a model that hold both blocks, by packed keys, and the last of each window; sorted.

        Engines evict a prompt from its end, so who holds these holds nearly always what lies between.
        """
        by_rule: dict[HitRule, list[WorkerId]] = {}
        for pool in self._registry.fleet(model):
            for worker in pool.workers.values():
                by_rule.setdefault(worker.rule, []).append(worker.id)
        return sorted(holder for rule, workers in by_rule.items() for holder in self._hold(rule, workers, first, last))

    def _hold(self, rule: HitRule, workers: Sequence[WorkerId], first: bytes, last: bytes) -> Iterator[WorkerId]:
        keys = (first + (last if last != first else b"") if rule.full else b"") + last_keys(rule, last)
        depths = self._index.match(keys, workers)
        return (worker for worker, held in zip(workers, depths, strict=True) if held * KEY_BYTES == len(keys))
