"""Why blocks that were counted on, or computed before, are gone: restarts, evictions, windows that have moved on."""

from __future__ import annotations

from collections.abc import Callable

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.lost_tokens import LostCause
from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.block_keys import keyed_blocks
from cachefleet_core.hit_rule import PLAIN, last_keys


class Losses:
    """What became of workers' blocks since a decision; reads the live state, changes nothing."""

    def __init__(self, index: BlockIndex, registry: Registry, clock: Callable[[], float]) -> None:
        self._index = index
        self._registry = registry
        self._clock = clock

    def now(self) -> float:
        """The time on the clock of all times here."""
        return self._clock()

    def restarted(self, worker: WorkerId, since: float) -> bool:
        """Whether a worker began a new epoch after ``since``, or is gone."""
        known = self._registry.worker(worker)
        return known is None or known.history.began > since

    def evicted(self, worker: WorkerId, keys: bytes, since: float) -> bool:
        """Whether any of these packed keys was removed from a worker at ``since`` or later, or the index lacks it now.

        Removals are kept while requests are in flight there, up to some 8,000 blocks.
        """
        known = self._informed(worker)
        if known is None or not known.rule.full:
            return False
        (held,) = self._index.match(keys, [worker]) if keys else [0]
        return held < len(keys) // KEY_BYTES or known.history.lost(keys, since=since)

    def left_window(self, worker: WorkerId, keys: bytes, since: float) -> bool:
        """Whether a window's or a state's blocks at the end of these packed keys are gone, as for ``evicted``."""
        known, blocks = self._informed(worker), len(keys) // KEY_BYTES
        if known is None or not (known.rule.windows and keys):
            return False
        (hit,) = self._index.match(keys, [worker], rules=[known.rule], usable=blocks)
        return hit < blocks or known.history.lost(last_keys(known.rule, keys), since=since)

    def untold(self, worker: WorkerId, keys: bytes, since: float) -> bool:
        """Whether a worker has not told of all these packed keys, of a prompt that it was sent at ``since``.

        It stores them in the step in which it schedules the prompt, and its reports are in order: what it evicted
        before that step is untold, too.
        """
        known = self._informed(worker)
        if known is None or not (known.rule.full and keys):
            return False
        (held,) = self._index.match(keys, [worker])
        rest = keys[KEY_BYTES * held :]
        return bool(rest) and not known.history.lost(rest, since=since)

    def fate(self, worker: WorkerId, keys: bytes, since: float, *, chosen: WorkerId) -> LostCause:
        """What became of blocks with these packed keys, which a worker computed at ``since``.

        HELD_ELSEWHERE where that worker holds them still, and is another one than the ``chosen``, which has just
        computed them again.
        """
        if self.restarted(worker, since):
            return LostCause.RESTARTED
        known = self._informed(worker)
        if known is None:
            return LostCause.STALE
        if worker == chosen or not keys:
            return LostCause.EVICTED
        blocks = len(keys) // KEY_BYTES
        (held,) = self._index.match(keys, [worker], rules=[known.rule], usable=blocks)
        return LostCause.HELD_ELSEWHERE if held >= blocks - known.rule.dropped else LostCause.EVICTED

    def dropped(self, worker: WorkerId) -> int:
        """Blocks at the end of each hit that a worker computes again."""
        known = self._registry.worker(worker)
        return 0 if known is None else known.rule.dropped

    def keyed(self, worker: WorkerId, tokens: int, block_size: int) -> int:
        """Blocks of a prompt that a worker may serve: its last tokens are computed, or only looked ahead to."""
        known = self._registry.worker(worker)
        ahead = known.hello.contract.lookahead if known is not None and known.hello is not None else 0
        return keyed_blocks(tokens, block_size, max(1, ahead))

    def by_prefix(self, worker: WorkerId) -> bool:
        """Whether a prefix is all that a hit on a worker needs."""
        known = self._registry.worker(worker)
        return known is not None and known.rule == PLAIN

    def _informed(self, worker: WorkerId) -> Worker | None:
        """A worker whose blocks are known now."""
        known = self._registry.worker(worker)
        return None if known is None or known.stream.stale(self._clock()) or known.unindexed else known
