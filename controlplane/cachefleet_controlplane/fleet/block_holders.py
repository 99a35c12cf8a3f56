"""Which workers hold a prefix: of which the first and the last block are known, or of which all keys are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.hit_rule import HitRule, last_keys


@dataclass(frozen=True, slots=True)
class PrefixDepth:
    """How much of a prompt one rank of a worker holds, in blocks from its beginning."""

    worker: str
    """Its full name, as NAMESPACE/POOL/NAME."""
    rank: int
    url: str
    device: int
    below: int
    """Blocks after these that it holds below the device."""


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

    def prefixes(self, model: str, keys: bytes, now: float) -> list[PrefixDepth]:
        """What each ready worker of a model holds of a prompt's packed keys; nothing where its reports are stale."""
        ready = [one for pool in self._registry.fleet(model) for one in pool.workers.values() if one.ready]
        fresh = [one for one in ready if not (one.stream.stale(now) or one.unindexed)]
        rules = [one.rule for one in fresh]
        device = self._index.match(keys, [one.id for one in fresh], rules=rules)
        below = self._index.loadable(keys, [one.id for one in fresh], device, rules)
        depths = {one.id: found for one, *found in zip(fresh, device, below, strict=True)}
        return [_held(one, *depths.get(one.id, (0, 0))) for one in ready]

    def _hold(self, rule: HitRule, workers: Sequence[WorkerId], first: bytes, last: bytes) -> Iterator[WorkerId]:
        keys = (first + (last if last != first else b"") if rule.full else b"") + last_keys(rule, last)
        depths = self._index.match(keys, workers)
        return (worker for worker, held in zip(workers, depths, strict=True) if held * KEY_BYTES == len(keys))


def _held(worker: Worker, device: int, below: int) -> PrefixDepth:
    url = worker.endpoint.url if worker.endpoint else ""
    return PrefixDepth(worker.full_name, worker.rank, url, device, below)
