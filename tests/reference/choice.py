"""The native choice among given candidates, held to the reference: every decision of it is made twice."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import cachefleet_native
from msgspec.structs import replace

from cachefleet_controlplane.routing.decision import Decision, Prompt, RoutingPolicy
from cachefleet_controlplane.routing.prompt_blocks import usable_blocks
from cachefleet_controlplane.selection.choice import decide as choose
from cachefleet_controlplane.selection.eligibility import Selection
from cachefleet_core.block_keys import Tier, pack_keys
from tests.controlplane.chains import chain
from tests.reference import scoring
from tests.reference.candidate import Candidate

NOW = 0.0
"""So that the age of a report is what a candidate says, to the last bit."""


def everything(decision: Decision) -> dict[str, Any]:
    """All fields of a decision, its scores made."""
    fields = {name: getattr(decision, name) for name in Decision.__struct_fields__}
    return fields | {"leading": list(decision.leading), "scores": list(decision.scores)}


def decide(prompt: Prompt, candidates: Sequence[Candidate], policy: RoutingPolicy, now: float) -> Decision:
    """The native decision, after a look that the reference decides the same."""
    if not candidates:
        return scoring.decide(prompt, candidates, policy, now)
    known = [_possible(prompt, candidate) for candidate in candidates]
    decision = _native(prompt, known, policy)
    assert everything(decision) == everything(scoring.decide(prompt, known, policy, NOW))
    return replace(decision, at=now)


def _possible(prompt: Prompt, candidate: Candidate) -> Candidate:
    """A candidate without the blocks that no index can say it has."""
    if not prompt.keys:
        return replace(candidate, matched_blocks=0, loadable_blocks=0, sent_blocks=0)
    candidate = replace(candidate, coming_blocks=candidate.sent_blocks)  # in flight, as the row below has it
    if candidate.report_age is None:
        return replace(candidate, matched_blocks=0, loadable_blocks=0)
    rest = max(0, usable_blocks(1 << 40, prompt) - candidate.matched_blocks)
    return replace(candidate, loadable_blocks=min(candidate.loadable_blocks, rest))


def _native(prompt: Prompt, candidates: Sequence[Candidate], policy: RoutingPolicy) -> Decision:
    keys = chain(99, max(one.matched_blocks + max(one.loadable_blocks, one.sent_blocks) for one in candidates) + 1)
    index = cachefleet_native.Index()
    for one in candidates:
        if held := keys[: one.matched_blocks]:
            index.store(one.id, 0, pack_keys(held), Tier.DEVICE)
        if below := keys[one.matched_blocks :][: one.loadable_blocks]:
            index.store(one.id, 0, pack_keys(below), Tier.HOST)
    asked = replace(prompt, keys=pack_keys(keys) if prompt.keys else b"", adapter="x")
    selection = Selection(model="", policy=policy, now=NOW, every=True)
    return choose(index, _table(candidates, keys), asked, asked.keys, selection)


def _table(candidates: Sequence[Candidate], keys: Sequence[int]) -> Any:
    """What of a ``WorkerTable`` the choice needs."""
    pools = list(dict.fromkeys(one.pool for one in candidates))
    plane = cachefleet_native.Plane()
    rows = [_row(plane, one, keys) for one in candidates]
    members = [(row, one.id, one.id, pools.index(one.pool)) for row, one in zip(rows, candidates, strict=True)]
    workers = [
        SimpleNamespace(name=one.worker, id=one.id, pool=one.pool, rank=one.rank, endpoint=SimpleNamespace(url=one.url))
        for one in candidates
    ]
    return SimpleNamespace(workers=workers, native=cachefleet_native.WorkerTable(plane, members))


def _row(plane: cachefleet_native.Plane, one: Candidate, keys: Sequence[int]) -> cachefleet_native.WorkerRow:
    row = plane.row()
    row.set_adapters(None, ["x"] if one.adapter_seconds else [])
    if one.sent_blocks:
        row.begin(pack_keys(keys[: one.sent_blocks]), 0, 0, 0, 0, 0, 0, NOW, lambda: None)
    cachefleet_native.pure.hold(row, one.view(NOW))
    return row
