"""Matching and scoring in one native call against ``routing.decide``."""

from __future__ import annotations

from typing import Any

import cachefleet_native
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import CandidateView, Knowledge, Prompt, Reason, RoutingPolicy, Verdict
from cachefleet_controlplane.routing.prompt_blocks import needed_blocks, usable_blocks
from cachefleet_controlplane.routing.scoring import decide
from cachefleet_controlplane.routing.throughput import Throughputs
from cachefleet_controlplane.routing.told_reason import told_reason
from cachefleet_controlplane.routing.worth import UNLEARNT, Worth
from cachefleet_core.block_keys import BlockKey, Tier, pack_keys
from tests.controlplane.chains import chain, stored

KEYS = chain(1, 40)
SIZE = 16
tokens = st.integers(0, 5000)
worths = st.just(UNLEARNT) | st.builds(Worth, st.floats(0, 1), st.floats(0, 50), st.floats(0, 2e5), st.floats(0, 1e5))


@st.composite
def views(draw: st.DrawFn) -> list[CandidateView]:
    count = draw(st.integers(1, 6))
    return [
        CandidateView(
            worker=f"w{number}",
            id=WorkerId(f"w{draw(st.integers(0, 9))}-{number}"),
            pool=draw(st.sampled_from(["p", "q"])),
            url="",
            matched_blocks=draw(st.integers(0, 40)),
            loadable_blocks=draw(st.sampled_from([0, 0, 1, 9, 40])),
            sent_blocks=draw(st.sampled_from([0, 0, 3, 40])),
            report_age=draw(st.sampled_from([None, 0.1, 0.1, 0.1, 9.0])),
            queued_tokens=draw(tokens),
            inflight_tokens=draw(tokens),
            tokens_per_second=draw(st.none() | st.floats(1, 1e5)),
            inter_token_seconds=draw(st.none() | st.floats(1e-4, 1)),
            batched_tokens=draw(st.sampled_from([0, 512, 2048])),
            loaded_per_second=draw(st.none() | st.floats(1, 1e6)),
            blocks_free=draw(st.none() | st.integers(0, 100)),
            blocks_blank=draw(st.none() | st.integers(0, 100)),
            requests=draw(st.integers(0, 3)),
            last_used=draw(st.integers(0, 3)),
            worth=draw(worths),
            adapter_seconds=draw(st.sampled_from([0.0, 0.0, 0.05, 3.0])),
        )
        for number in range(count)
    ]


def busy(name: str, **changes: Any) -> CandidateView:
    """One with no room."""
    own: dict[str, Any] = {"worker": name, "id": WorkerId(name), "pool": "p", "url": "", "report_age": 0.1}
    own |= {"requests": 1, "blocks_free": 0, "tokens_per_second": 1000.0}
    return CandidateView(**(own | changes))


ONLY_ONE_FITS = [busy("a", requests=0), busy("b", queued_tokens=10), busy("c", queued_tokens=900, matched_blocks=30)]


@example(ONLY_ONE_FITS, 640, 100, 0.0, 0)
@given(
    views(), st.integers(1, 700), st.integers(0, 300), st.sampled_from([0.0, 0.0, 0.01, 1.0, 1e6]), st.integers(0, 700)
)
def test_the_choice_is_that_of_decide(
    candidates: list[CandidateView], length: int, max_tokens: int, paid: float, paid_tokens: int
) -> None:
    index = BlockIndex()
    for view in candidates:
        if view.matched_blocks:
            index.apply(view.id, stored(KEYS[: view.matched_blocks]))
        if view.loadable_blocks:
            under = KEYS[view.matched_blocks // 2 :][: view.loadable_blocks]
            index.apply(view.id, stored(under, tier=Tier.HOST))
    keys = [*KEYS, *map(BlockKey, range(1, 20))][: length // SIZE]
    prompt = Prompt(
        length, pack_keys(keys), SIZE, max_tokens, Knowledge.EXACT, paid_seconds=paid, paid_tokens=paid_tokens
    )
    ids = [view.id for view in candidates]
    depths = index.match(keys, ids)
    more = index.loadable(keys[: usable_blocks(len(keys), prompt)], ids, depths)
    known = [
        replace(view, matched_blocks=depth, loadable_blocks=blocks)
        for view, depth, blocks in zip(candidates, depths, more, strict=True)
    ]
    decision = decide(prompt, known, RoutingPolicy.CACHE_AWARE, 0.0)

    loads, throughputs = cachefleet_native.Loads(len(known)), Throughputs.learn(known)
    for place, (view, score) in enumerate(zip(known, decision.scores, strict=True)):
        throughput = throughputs.of(view)
        delayed, standing = view.worth.delays(throughput.token_seconds)
        loads.set(
            place,
            tokens_per_second=score.tokens_per_second,
            inter_token_seconds=score.inter_token_seconds,
            batched_tokens=score.batched_tokens,
            stale=view.stale,
            queued_tokens=view.queued_tokens,
            inflight_tokens=view.inflight_tokens,
            blocks_free=view.blocks_free,
            blocks_blank=view.blocks_blank,
            requests=view.requests,
            last_used=view.last_used,
            eviction=view.worth.eviction,
            delayed=delayed,
            standing=standing,
            loaded_per_second=throughput.loaded_per_second,
            adapter_seconds=view.adapter_seconds,
        )
    choice = index.native.match_and_score(
        pack_keys(keys),
        cachefleet_native.Candidates([view.id for view in known]),
        loads,
        tokens=length,
        block_size=SIZE,
        needed_blocks=needed_blocks(prompt),
        sent=[(place, view.sent_blocks) for place, view in enumerate(known)],
        paid=paid,
        paid_tokens=paid_tokens,
    )

    assert choice is not None
    assert (choice.reason == "no_fit") == (decision.reason is Reason.NO_ROOM)
    assert decision.leading[0].id == known[choice.first].id
    if decision.verdict is Verdict.ROUTE:
        assert (
            known[choice.first].id,
            told_reason(Reason(choice.reason), prompt, predicted=decision.predicted_tokens),
        ) == (decision.id, decision.reason)
        if decision.knowledge is Knowledge.EXACT:
            assert (choice.longest, choice.excess) == (decision.prefix_tokens, decision.excess_seconds)
    chosen = decision.scores[choice.first]
    assert choice.first_score == (
        chosen.matched_blocks,
        chosen.expected_tokens,
        chosen.evicted_tokens,
        chosen.seconds,
        chosen.fits,
    )
    assert (choice.second is None) == (choice.second_score is None)
    best = [choice.first] if choice.second is None else [choice.first, choice.second]
    assert [known[place].id for place in best] == [score.id for score in decision.leading[:2]]


def test_nobody_to_choose_from() -> None:
    nobody = cachefleet_native.Candidates([])
    choice = BlockIndex().native.match_and_score(
        b"", nobody, cachefleet_native.Loads(0), tokens=5, block_size=16, needed_blocks=1
    )
    assert choice is None


def test_what_cannot_be_is_refused() -> None:
    loads = cachefleet_native.Loads(1)
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="rates"):
            loads.set(0, tokens_per_second=rate, inter_token_seconds=0.0, batched_tokens=1)
    absurd: list[dict[str, Any]] = [{"eviction": -0.1}, {"delayed": float("nan")}, {"standing": float("inf")}]
    for worth in absurd:
        with pytest.raises(ValueError, match="must be finite and at least 0"):
            loads.set(0, tokens_per_second=1.0, inter_token_seconds=0.0, batched_tokens=1, **worth)
    with pytest.raises(IndexError):
        loads.set(1, tokens_per_second=1.0, inter_token_seconds=0.0, batched_tokens=1)
    free: dict[str, Any] = {"blocks_free": None, "blocks_blank": None, "requests": 1, "last_used": 1}
    with pytest.raises(ValueError, match="too many"):
        loads.set_in_flight(0, inflight_tokens=1 << 60, **free)
    with pytest.raises(IndexError):
        loads.set_in_flight(1, inflight_tokens=1, **free)
    with pytest.raises(ValueError, match="not of these candidates"):
        BlockIndex().native.match_and_score(
            b"", cachefleet_native.Candidates(["a", "b"]), loads, tokens=5, block_size=16, needed_blocks=1
        )
