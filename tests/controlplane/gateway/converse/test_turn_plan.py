"""Plans: nothing remembered is used that the fresh prompt does not bear out, and each refusal has its reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.converse.checkpoint import Checkpoint, Fresh, checkpoint
from cachefleet_controlplane.gateway.converse.turn_plan import (
    TurnOutcome,
    TurnPlan,
    Why,
    plan,
    with_handle,
)
from cachefleet_controlplane.gateway.handles.sending import HandleOutcome
from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.continuation import MISMATCHES, prefix_hash
from tests.controlplane.gateway.converse.made import BLOCK, HERE, PRINTS, RECEIPT, fresh, left, lineage

NOW = 150.0
PROMPT = list(range(1, 12))
NEXT = [*PROMPT, 50, 51, 52]
BOUNDARY = 9


def made(checkpoint: Checkpoint | None, prompt: Any = None) -> TurnPlan:
    return plan(checkpoint, prompt or fresh(NEXT, BOUNDARY, 13), now=NOW)


def remembered(**changes: Any) -> Checkpoint:
    return left(PROMPT, 3, BOUNDARY, **changes)


def test_a1_a_checkpoint_has_what_the_prompt_up_to_its_boundary_has() -> None:
    found = left(PROMPT, 3, BOUNDARY)
    assert (found.prefix_tokens, found.ends_at_boundary, found.prompt_tokens) == (BOUNDARY, True, len(PROMPT))
    assert found.prefix_hash == prefix_hash(PROMPT[:BOUNDARY])
    assert found.keys == fresh(PROMPT).keys[: 8 * (BOUNDARY // BLOCK)]
    assert (found.worker, found.epoch, found.fingerprints) == (HERE.worker, HERE.epoch, PRINTS)
    assert (found.contract, found.block_size, found.salt_version) == (RECEIPT.contract, BLOCK, 1)


def test_a1_without_a_boundary_it_is_the_whole_prompt_and_verifies_nothing() -> None:
    found = left(PROMPT)
    assert (found.prefix_tokens, found.ends_at_boundary) == (len(PROMPT), False)
    assert made(found).outcome is TurnOutcome.BOUNDARY_REJECTED


def test_a1_its_keys_are_bounded() -> None:
    found = left(PROMPT, BOUNDARY, max_keys=1)
    assert len(found.keys) == 8
    assert made(found, fresh(NEXT, BOUNDARY, at_hand=False)).why == Why.NOT_VERIFIABLE
    assert made(found).outcome is TurnOutcome.ARTIFACT_HIT


def test_a2_the_first_turn_has_nothing_to_continue() -> None:
    assert made(None) == TurnPlan(TurnOutcome.NO_CHECKPOINT)


def test_a4_neither_checkpoint_nor_its_text_has_ids() -> None:
    found = left(list(range(70_000, 70_200)), 150)
    assert not {"ids", "token_ids"} & set(Checkpoint.__dataclass_fields__)
    assert b"70100" not in repr(found).encode()
    assert (70_100).to_bytes(4, "little") not in found.keys


def test_everything_as_it_was_is_verified() -> None:
    assert made(remembered()) == TurnPlan(TurnOutcome.ARTIFACT_HIT, prefix_tokens=BOUNDARY, checked=True)


@pytest.mark.parametrize("name", list(MISMATCHES))
def test_a6_each_fingerprint_refuses_by_its_own_name(name: str) -> None:
    """One mutation each: the check of that field is what refuses."""
    changed = msgspec.structs.replace(PRINTS, **{name: "other"})
    found = made(remembered(), fresh(NEXT, BOUNDARY, fingerprints=changed))
    assert (found.outcome, found.why) == (TurnOutcome.FINGERPRINT_MISMATCH, name)


@given(st.sets(st.sampled_from(sorted(MISMATCHES))), st.text(min_size=1, max_size=9))
def test_a6_any_set_of_changed_fingerprints_refuses_and_none_does_not(names: set[str], text: str) -> None:
    changed = msgspec.structs.replace(PRINTS, **dict.fromkeys(names, text + "!"))
    found = made(remembered(), fresh(NEXT, BOUNDARY, fingerprints=changed))
    assert (found.outcome is TurnOutcome.FINGERPRINT_MISMATCH) == bool(names)
    assert found.why in names | {Why.NONE}


@pytest.mark.parametrize("change", [{"contract": "sha256:other"}, {"block_size": 8}, {"salt_version": 2}])
def test_a11_a17_keys_of_another_contract_or_salt_are_no_receipt(change: dict[str, Any]) -> None:
    assert made(remembered(**change)).outcome is TurnOutcome.RECEIPT_INVALID


@pytest.mark.parametrize("count", [BOUNDARY - 1, BOUNDARY + 1])
def test_a6_a_count_that_is_not_the_hashs_is_no_prefix(count: int) -> None:
    assert made(remembered(prefix_tokens=count)).why == Why.NOT_A_PREFIX


@pytest.mark.parametrize("count", [0, -1, len(PROMPT) + 1])
def test_a6_a_count_outside_of_its_prompt_is_refused(count: int) -> None:
    assert made(remembered(prefix_tokens=count)).why == Why.COUNT_MISMATCH


def test_a6_what_is_as_long_as_the_prompt_leaves_nothing_to_append() -> None:
    assert made(remembered(), fresh(PROMPT[:BOUNDARY], BOUNDARY)).why == Why.NO_MARGINAL_SUFFIX


@given(st.integers(0, BOUNDARY - 1))
def test_a6_a14_a_conversation_that_went_back_is_not_continued(place: int) -> None:
    other = [*NEXT[:place], 999, *NEXT[place + 1 :]]
    found = made(remembered(), fresh(other, BOUNDARY))
    assert (found.outcome, found.why) == (TurnOutcome.ARTIFACT_MISS, Why.NOT_A_PREFIX)
    assert made(remembered(), fresh(other[: BOUNDARY - 1], 3)).why == Why.NOT_A_PREFIX


@given(st.sets(st.integers(1, len(NEXT))))
def test_a7_only_a_boundary_proposed_both_times_will_do(proposed: set[int]) -> None:
    found = made(remembered(), fresh(NEXT, *sorted(proposed)))
    if BOUNDARY in proposed:
        assert found.outcome is TurnOutcome.ARTIFACT_HIT
    else:
        assert (found.outcome, found.verified) == (TurnOutcome.BOUNDARY_REJECTED, False)
    assert made(remembered(ends_at_boundary=False)).outcome is TurnOutcome.BOUNDARY_REJECTED


def test_block_keys_alone_verify_the_whole_blocks() -> None:
    found = made(remembered(), fresh(NEXT, BOUNDARY, at_hand=False))
    assert (found.outcome, found.prefix_tokens) == (TurnOutcome.ARTIFACT_HIT, BOUNDARY)
    other = [999, *NEXT[1:]]
    assert made(remembered(), fresh(other, BOUNDARY, at_hand=False)).why == Why.NOT_A_PREFIX
    short = left(PROMPT[:3], 3)
    assert made(short, fresh(NEXT, 3, at_hand=False)).why == Why.NOT_VERIFIABLE


def test_a_prefix_that_ends_with_a_block_is_not_verified_by_a_key_that_looks_beyond_it() -> None:
    """What follows the prefix may be another token in the next turn: that is what turns append."""
    keyer = BlockKeyer(b"k" * 32, Namespace(RECEIPT.contract, "salt"), BLOCK, 1)

    def turn(*ids: int) -> Fresh:
        return fresh(ids, 8, at_hand=False, keys=keyer.packed_keys(ids), lookahead=1)

    before = checkpoint(lineage(), turn(1, 2, 3, 4, 5, 6, 7, 8, 9), HERE, max_keys=100)
    assert before.keys == keyer.packed_keys([1, 2, 3, 4, 5])
    assert made(before, turn(1, 2, 3, 4, 5, 6, 7, 8, 7, 7)).outcome is TurnOutcome.ARTIFACT_HIT
    assert made(before, turn(1, 2, 3, 4, 0, 6, 7, 8, 9, 9)).outcome is TurnOutcome.ARTIFACT_MISS


def test_a16_expired_and_unrendered_have_outcomes_of_their_own() -> None:
    assert made(remembered(expires=NOW)).outcome is TurnOutcome.ARTIFACT_EXPIRED
    found = made(remembered(), fresh([]))
    assert (found.outcome, found.why) == (TurnOutcome.ARTIFACT_MISS, Why.NOT_RENDERED)


def test_a16_no_plan_is_anything_but_a_way() -> None:
    """Every outcome that a plan can have; the others are of handles, conflicts, a failed store, and off."""
    seen = {
        made(None).outcome,
        made(remembered()).outcome,
        made(remembered(prefix_tokens=0)).outcome,
        made(remembered(expires=0)).outcome,
        made(remembered(), fresh(NEXT, BOUNDARY, fingerprints=msgspec.structs.replace(PRINTS, model="x"))).outcome,
        made(remembered(salt_version=9)).outcome,
        made(remembered(), fresh(NEXT)).outcome,
    }
    of_handles = {TurnOutcome.SHORTCUT_HIT, TurnOutcome.SHORTCUT_MISS}
    assert set(TurnOutcome) - seen == {TurnOutcome.OFF, TurnOutcome.CONFLICT, TurnOutcome.STORE_FAILED} | of_handles


@pytest.mark.parametrize("turn", [None, *TurnOutcome])
@pytest.mark.parametrize("used", [None, *HandleOutcome])
def test_a16_a_used_handle_is_told_unless_the_turn_was_not_kept(
    turn: TurnOutcome | None, used: HandleOutcome | None
) -> None:
    kept_not = {TurnOutcome.OFF, TurnOutcome.CONFLICT, TurnOutcome.STORE_FAILED}
    expected = turn if used is None or turn in kept_not else TurnOutcome(used)
    assert with_handle(turn, used) is expected


@given(st.lists(st.integers(0, 5), min_size=1, max_size=24), st.lists(st.integers(0, 5), max_size=24), st.data())
def test_a6_a_verified_prefix_is_one(before: list[int], now: list[int], data: st.DataObject) -> None:
    """Whatever was remembered: what a plan says is verified is how the fresh prompt begins, strictly."""
    then = data.draw(st.sampled_from([now, before + now, before[: len(before) // 2] + now]))
    bounds = sorted(data.draw(st.sets(st.integers(1, len(before)))))
    again = sorted(data.draw(st.sets(st.integers(1, max(1, len(then))))))
    found = made(left(before, *bounds), fresh(then, *again))
    if found.verified:
        tokens = found.prefix_tokens
        assert tokens < len(then)
        assert then[:tokens] == before[:tokens]
        assert tokens in bounds
        assert tokens in again
