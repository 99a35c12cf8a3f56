"""Who holds a prefix, of workers with several rules, in few reads of the index."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from cachefleet_controlplane.fleet.block_holders import BlockHolders
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.worker_id import WorkerId, worker_id
from cachefleet_core.block_keys import NO_PARENT, Tier, pack_keys, unpack_keys
from cachefleet_core.hit_rule import PLAIN, HitRule, last_keys
from cachefleet_core.report_frames import Stored

WINDOWED = HitRule(windows=(2,))
FIRST, LAST = pack_keys([11]), pack_keys([13])


class Counted(BlockIndex):
    """An index that counts reads."""

    reads = 0

    def match(self, keys: Any, candidates: Sequence[WorkerId], **how: Any) -> list[int]:
        self.reads += 1
        return super().match(keys, candidates, **how)


def test_workers_of_one_rule_are_asked_for_together() -> None:
    index, workers = Counted(), {}
    for number in range(60):
        rule = (PLAIN, WINDOWED)[number % 2]
        one = SimpleNamespace(id=worker_id("default/demo", f"w{number:02}", 0), rule=rule)
        workers[one.id] = one
        if number % 3:
            index.apply(one.id, Stored(parent=NO_PARENT, keys=pack_keys([11, 12, 13]), tier=Tier.DEVICE))
        if number % 3 == 2:
            for key in unpack_keys(last_keys(rule, LAST)):
                index.apply(one.id, Stored(parent=NO_PARENT, keys=pack_keys([key]), tier=Tier.DEVICE))
    registry = cast("Any", SimpleNamespace(fleet=lambda _: [SimpleNamespace(workers=workers)]))
    held = BlockHolders(index, registry).of("default/demo", FIRST, LAST)
    wanted = [number for number in range(60) if number % 3 == 2 or (number % 3 and not number % 2)]
    assert held == [worker_id("default/demo", f"w{number:02}", 0) for number in wanted]
    assert index.reads == 2, "one for each rule"
