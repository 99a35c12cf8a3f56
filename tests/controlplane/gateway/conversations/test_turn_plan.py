"""Plans: nothing remembered is used that the fresh prompt does not bear out, and each refusal has its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.conversations.checkpoint import Checkpoint, Place
from cachefleet_controlplane.gateway.conversations.turn_plan import (
    PlanKind,
    TurnLimits,
    TurnOutcome,
    TurnPlan,
    Why,
    plan,
)
from cachefleet_core.continuation import MISMATCHES, prefix_hash
from tests.controlplane.gateway.conversations.made import BLOCK, HERE, PRINTS, RECEIPT, fresh, left

NOW = 150.0
PROMPT = list(range(1, 12))
NEXT = [*PROMPT, 50, 51, 52]
BOUNDARY = 9
ALL = TurnLimits(place=HERE, handles=True, certified=True)


def made(checkpoint: Checkpoint | None, prompt: Any = None, limits: TurnLimits = ALL) -> TurnPlan:
    return plan(checkpoint, prompt or fresh(NEXT, BOUNDARY, 13), now=NOW, limits=limits)


def handled(**changes: Any) -> Checkpoint:
    return left(PROMPT, 3, BOUNDARY, **({"handle": "vllm_prefix_1"} | changes))


def test_a1_a_checkpoint_has_what_the_prompt_up_to_its_boundary_has() -> None:
    found = left(PROMPT, 3, BOUNDARY)
    assert (found.prefix_tokens, found.ends_at_boundary, found.prompt_tokens) == (BOUNDARY, True, len(PROMPT))
    assert found.prefix_hash == prefix_hash(PROMPT[:BOUNDARY])
    assert found.keys == fresh(PROMPT).keys[: 8 * (BOUNDARY // BLOCK)]
    assert (found.worker, found.epoch, found.fingerprints) == (HERE.worker, HERE.epoch, PRINTS)
    assert (found.contract, found.block_size, found.salt_version) == (RECEIPT.contract, BLOCK, 1)


def test_a1_without_a_boundary_it_is_the_whole_prompt_and_no_handle() -> None:
    found = left(PROMPT)
    assert (found.prefix_tokens, found.ends_at_boundary) == (len(PROMPT), False)
    assert made(replace(found, handle="vllm_prefix_1")).outcome is TurnOutcome.BOUNDARY_REJECTED


def test_a1_its_keys_are_bounded() -> None:
    found = left(PROMPT, BOUNDARY, max_keys=1)
    assert len(found.keys) == 8
    assert made(found, fresh(NEXT, BOUNDARY, at_hand=False)).why == Why.NOT_VERIFIABLE
    assert made(found).outcome is TurnOutcome.ARTIFACT_HIT


def test_a2_the_first_turn_has_nothing_to_continue() -> None:
    assert made(None) == TurnPlan(PlanKind.FULL, TurnOutcome.NO_CHECKPOINT)


def test_a4_neither_checkpoint_nor_its_text_has_ids() -> None:
    found = left(list(range(70_000, 70_200)), 150)
    assert not {"ids", "token_ids"} & set(Checkpoint.__dataclass_fields__)
    assert b"70100" not in repr(found).encode()
    assert (70_100).to_bytes(4, "little") not in found.keys


def test_everything_as_it_was_is_a_shortcut() -> None:
    assert made(handled()) == TurnPlan(
        PlanKind.SHORTCUT, TurnOutcome.SHORTCUT_HIT, prefix_tokens=BOUNDARY, checked=True
    )


@pytest.mark.parametrize("name", list(MISMATCHES))
def test_a6_each_fingerprint_refuses_by_its_own_name(name: str) -> None:
    """One mutation each: the check of that field is what refuses."""
    changed = msgspec.structs.replace(PRINTS, **{name: "other"})
    found = made(handled(), fresh(NEXT, BOUNDARY, fingerprints=changed))
    assert (found.kind, found.outcome, found.why) == (PlanKind.FULL, TurnOutcome.FINGERPRINT_MISMATCH, name)


@given(st.sets(st.sampled_from(sorted(MISMATCHES))), st.text(min_size=1, max_size=9))
def test_a6_any_set_of_changed_fingerprints_refuses_and_none_does_not(names: set[str], text: str) -> None:
    changed = msgspec.structs.replace(PRINTS, **dict.fromkeys(names, text + "!"))
    found = made(handled(), fresh(NEXT, BOUNDARY, fingerprints=changed))
    assert (found.outcome is TurnOutcome.FINGERPRINT_MISMATCH) == bool(names)
    assert found.why in names | {Why.NONE}


@pytest.mark.parametrize("change", [{"contract": "sha256:other"}, {"block_size": 8}, {"salt_version": 2}])
def test_a11_a17_keys_of_another_contract_or_salt_are_no_receipt(change: dict[str, Any]) -> None:
    assert made(handled(**change)).outcome is TurnOutcome.RECEIPT_INVALID


@pytest.mark.parametrize("count", [BOUNDARY - 1, BOUNDARY + 1])
def test_a6_a_count_that_is_not_the_hashs_is_no_prefix(count: int) -> None:
    assert made(handled(prefix_tokens=count)).why == Why.NOT_A_PREFIX


@pytest.mark.parametrize("count", [0, -1, len(PROMPT) + 1])
def test_a6_a_count_outside_of_its_prompt_is_refused(count: int) -> None:
    assert made(handled(prefix_tokens=count)).why == Why.COUNT_MISMATCH


def test_a6_what_is_as_long_as_the_prompt_leaves_nothing_to_append() -> None:
    assert made(handled(), fresh(PROMPT[:BOUNDARY], BOUNDARY)).why == Why.NO_MARGINAL_SUFFIX


@given(st.integers(0, BOUNDARY - 1))
def test_a6_a14_a_conversation_that_went_back_is_not_continued(place: int) -> None:
    other = [*NEXT[:place], 999, *NEXT[place + 1 :]]
    found = made(handled(), fresh(other, BOUNDARY))
    assert (found.kind, found.outcome, found.why) == (PlanKind.FULL, TurnOutcome.ARTIFACT_MISS, Why.NOT_A_PREFIX)
    assert made(handled(), fresh(other[: BOUNDARY - 1], 3)).why == Why.NOT_A_PREFIX


@given(st.sets(st.integers(1, len(NEXT))))
def test_a7_only_a_boundary_proposed_both_times_will_do(proposed: set[int]) -> None:
    found = made(handled(), fresh(NEXT, *sorted(proposed)))
    if BOUNDARY in proposed:
        assert found.kind is PlanKind.SHORTCUT
    else:
        assert (found.kind, found.outcome) == (PlanKind.FULL, TurnOutcome.BOUNDARY_REJECTED)
    assert made(handled(ends_at_boundary=False)).outcome is TurnOutcome.BOUNDARY_REJECTED


@pytest.mark.parametrize(
    ("place", "why"),
    [(Place("default/demo/demo-1", "e0"), Why.OTHER_WORKER), (Place(HERE.worker, "e1"), Why.OTHER_EPOCH)],
)
def test_a8_a9_a_handle_is_for_its_worker_in_its_life_alone(place: Place, why: Why) -> None:
    found = made(handled(), limits=replace(ALL, place=place))
    assert (found.kind, found.outcome, found.why) == (PlanKind.ARTIFACT, TurnOutcome.SHORTCUT_MISS, why)


@pytest.mark.parametrize(
    ("limits", "change", "why"),
    [
        (replace(ALL, handles=False), {}, Why.HANDLES_OFF),
        (replace(ALL, certified=False), {}, Why.NOT_CERTIFIED),
        (ALL, {"handle": None}, Why.NO_HANDLE),
    ],
)
def test_a21_no_handle_is_sent_where_it_may_not_be(limits: TurnLimits, change: dict[str, Any], why: Why) -> None:
    found = made(handled(**change), limits=limits)
    assert (found.kind, found.outcome, found.why) == (PlanKind.ARTIFACT, TurnOutcome.ARTIFACT_HIT, why)


def test_a7_block_keys_alone_never_make_a_shortcut() -> None:
    """They say nothing of the tokens behind the last whole block."""
    found = made(handled(), fresh(NEXT, BOUNDARY, at_hand=False))
    assert (found.kind, found.outcome, found.why) == (PlanKind.ARTIFACT, TurnOutcome.SHORTCUT_MISS, Why.IDS_NOT_AT_HAND)
    other = [999, *NEXT[1:]]
    assert made(handled(), fresh(other, BOUNDARY, at_hand=False)).why == Why.NOT_A_PREFIX
    short = left(PROMPT[:3], 3)
    assert made(short, fresh(NEXT, 3, at_hand=False)).why == Why.NOT_VERIFIABLE


def test_a16_expired_and_unrendered_have_outcomes_of_their_own() -> None:
    assert made(handled(expires=NOW)).outcome is TurnOutcome.ARTIFACT_EXPIRED
    found = made(handled(), fresh([]))
    assert (found.outcome, found.why) == (TurnOutcome.ARTIFACT_MISS, Why.NOT_RENDERED)


def test_a16_no_plan_is_anything_but_a_way() -> None:
    """Every outcome that a plan can have, and that none but the conflict, off and a failed store are left."""
    seen = {
        made(None).outcome,
        made(handled()).outcome,
        made(handled(handle=None)).outcome,
        made(handled(prefix_tokens=0)).outcome,
        made(handled(expires=0)).outcome,
        made(handled(), fresh(NEXT, BOUNDARY, fingerprints=msgspec.structs.replace(PRINTS, model="x"))).outcome,
        made(handled(salt_version=9)).outcome,
        made(handled(epoch="gone")).outcome,
        made(handled(), fresh(NEXT)).outcome,
    }
    assert set(TurnOutcome) - seen == {TurnOutcome.OFF, TurnOutcome.CONFLICT, TurnOutcome.STORE_FAILED}


@given(st.lists(st.integers(0, 5), min_size=1, max_size=24), st.lists(st.integers(0, 5), max_size=24), st.data())
def test_a6_a_verified_prefix_is_one(before: list[int], now: list[int], data: st.DataObject) -> None:
    """Whatever was remembered: what a plan says is verified is how the fresh prompt begins, strictly."""
    then = data.draw(st.sampled_from([now, before + now, before[: len(before) // 2] + now]))
    bounds = sorted(data.draw(st.sets(st.integers(1, len(before)))))
    again = sorted(data.draw(st.sets(st.integers(1, max(1, len(then))))))
    found = made(left(before, *bounds, handle="vllm_prefix_1"), fresh(then, *again))
    if found.verified:
        tokens = found.prefix_tokens
        assert tokens < len(then)
        assert then[:tokens] == before[:tokens]
        assert tokens in bounds
        assert tokens in again
