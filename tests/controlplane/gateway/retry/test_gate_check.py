"""The table of what an attempt is held to, and where its prompt is computed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cachefleet_controlplane.gateway.request.hit_thresholds import HitThresholds
from cachefleet_controlplane.gateway.retry.attempt_plan import AS_ASKED, AttemptMode, attempt_mode, foreseen
from cachefleet_controlplane.gateway.retry.retry_state_machine import Action, Progress, State, step
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Reason, RoutingPolicy, Verdict

MAX_ATTEMPTS = 3
PLAIN = HitThresholds(speaks=True, thresholds={"p": 0.0})
GATED = HitThresholds(speaks=True, thresholds={"p": 0.5})
SPLIT = HitThresholds(speaks=True, split=True, thresholds={"d": 0.0, "b": 0.0}, decoding=frozenset({"d"}))
OPEN = AttemptMode(threshold=0.0)


def decided(pool: str = "p", *, predicted: int = 0, knowledge: Knowledge = Knowledge.EXACT) -> Decision:
    return Decision(
        verdict=Verdict.ROUTE,
        reason=Reason.LONGEST_PREFIX,
        policy=RoutingPolicy.CACHE_AWARE,
        knowledge=knowledge,
        worker="w",
        pool=pool,
        prompt_tokens=100,
        predicted_tokens=predicted,
    )


def way(gate: HitThresholds, decision: Decision, *, resumed: bool = False, **progress: Any) -> AttemptMode:
    return attempt_mode(gate, decision, Progress(**progress), resumed=resumed, max_attempts=MAX_ATTEMPTS)


def test_an_api_without_a_word_for_a_refusal_is_sent_as_asked() -> None:
    for gate in (GATED, SPLIT):
        assert way(replace(gate, speaks=False), decided("d", predicted=96)) == AS_ASKED


def test_b2_a_callers_threshold_is_its_own_business() -> None:
    for own in (0.0, 0.9):
        assert way(replace(GATED, own=own), decided(predicted=0)) == AS_ASKED


def test_where_nobody_has_a_threshold_nothing_is_added_but_a_look() -> None:
    assert way(PLAIN, decided(predicted=96)) == AttemptMode(watched=True)
    assert way(PLAIN, decided(), refusals=1) == OPEN


@pytest.mark.parametrize(("predicted", "gated"), [(49, False), (50, True), (96, True), (0, False)])
def test_a_pools_threshold_goes_along_where_the_index_promises_it(predicted: int, *, gated: bool) -> None:
    expected = AttemptMode(threshold=0.5, watched=True) if gated else OPEN
    assert way(GATED, decided(predicted=predicted)) == expected


@pytest.mark.parametrize("knowledge", [Knowledge.APPROXIMATE, Knowledge.LOAD])
def test_an_estimate_promises_nothing(knowledge: Knowledge) -> None:
    assert way(GATED, decided(predicted=96, knowledge=knowledge)) == OPEN


def test_the_last_attempt_runs() -> None:
    assert way(GATED, decided(predicted=96), refusals=MAX_ATTEMPTS - 2).watched
    assert way(GATED, decided(predicted=96), refusals=MAX_ATTEMPTS - 1) == OPEN


def test_of_several_prompts_only_the_first_is_promised() -> None:
    several = replace(GATED, one_prompt=False)
    assert way(several, decided(predicted=96)) == OPEN
    assert way(replace(SPLIT, one_prompt=False), decided("d")) == OPEN


def test_b16_without_field_and_threshold_prefill_comes_first() -> None:
    assert way(SPLIT, decided("d", predicted=96)).prefill is Reason.SPLIT_ROLES
    assert way(SPLIT, decided("b", predicted=0)) == OPEN


@pytest.mark.parametrize(("own", "predicted", "prefilled"), [(0.0, 0, False), (0.5, 48, True), (0.5, 64, False)])
def test_b16_with_the_field_decode_comes_first(own: float, predicted: int, *, prefilled: bool) -> None:
    found = way(replace(SPLIT, own=own), decided("d", predicted=predicted))
    assert found == (
        AttemptMode(prefill=Reason.BELOW_THRESHOLD) if prefilled else AttemptMode(threshold=own, watched=True)
    )


def test_b16_a_pools_threshold_does_the_same() -> None:
    gate = replace(SPLIT, thresholds={"d": 0.5})
    assert way(gate, decided("d", predicted=64)) == AttemptMode(threshold=0.5, watched=True)
    assert way(gate, decided("d", predicted=0)).prefill is Reason.BELOW_THRESHOLD


def test_what_is_not_known_exactly_is_tried() -> None:
    gate = replace(SPLIT, own=0.5)
    assert way(gate, decided("d", knowledge=Knowledge.LOAD)) == AttemptMode(threshold=0.5, watched=True)


def test_b16_a_refusal_is_followed_by_prefill_and_that_by_an_open_attempt() -> None:
    gate = replace(SPLIT, own=0.5)
    assert way(gate, decided("d", predicted=96), refusals=1).prefill is Reason.GATE_REFUSED
    assert way(gate, decided("d"), refusals=1, transferred=True) == AttemptMode(threshold=0.0, transferred=True)


def test_the_rest_of_an_answer_is_never_gated() -> None:
    assert way(GATED, decided(predicted=96), resumed=True) == AS_ASKED
    gate = replace(SPLIT, own=0.5)
    assert way(gate, decided("d", predicted=96), resumed=True) == OPEN
    assert way(gate, decided("d", predicted=0), resumed=True).prefill is Reason.BELOW_THRESHOLD


def test_a_decision_alone_says_what_would_come_first() -> None:
    found = foreseen(SPLIT, decided("d"))
    assert (found.verdict, found.reason) == (Verdict.PREFILL_FIRST, Reason.SPLIT_ROLES)
    assert foreseen(GATED, decided()).verdict is Verdict.ROUTE


gates = st.builds(
    HitThresholds,
    speaks=st.just(True),  # noqa: FBT003 - a strategy
    own=st.sampled_from([None, None, 0.0, 0.3, 1.0]),
    split=st.booleans(),
    thresholds=st.fixed_dictionaries({"d": st.sampled_from([0.0, 0.3, 1.0]), "b": st.sampled_from([0.0, 0.6])}),
    decoding=st.just(frozenset({"d"})),
    one_prompt=st.booleans(),
)
decisions = st.builds(
    decided,
    st.sampled_from(["d", "b"]),
    predicted=st.integers(0, 99),
    knowledge=st.sampled_from(Knowledge),
)


@given(gates, st.integers(1, 4), st.data())
def test_every_request_is_answered_by_an_attempt_that_no_gate_can_refuse(
    gate: HitThresholds, max_attempts: int, data: Any
) -> None:
    """Engines that refuse whatever they may: nobody hears of it who has not asked, and soon there is an answer."""
    progress, action = Progress(), Action.CHOOSE
    sent: list[AttemptMode] = []
    while action is not Action.DELIVER:
        assert len(sent) <= max_attempts + 1
        found = attempt_mode(gate, data.draw(decisions), progress, resumed=False, max_attempts=max_attempts)
        if found.prefill is not None:
            assert gate.split
            assert not sent or sent[-1].prefill is None
            progress, action = step(progress, Outcome.PREFILL_FIRST, max_attempts=max_attempts)
            assert action is Action.PREFILL
            progress, action = step(progress, Outcome.PREFILLED, max_attempts=max_attempts)
            sent.append(found)
            continue
        assert found.transferred == (bool(sent) and sent[-1].prefill is not None)
        sent.append(found)
        progress, action = step(progress, Outcome.PLACED, worker="w", max_attempts=max_attempts)
        refuses = found.watched and data.draw(st.booleans())
        progress, action = step(
            progress, Outcome.GATE_REFUSED if refuses else Outcome.ANSWERED, max_attempts=max_attempts
        )
    assert progress.state is State.ENDED
    for one in sent:
        # What we hold an attempt to we look after; without a caller's own wish nothing else can be refused.
        assert one.watched or not one.threshold
    if gate.split and gate.own is not None:
        assert sent[0] != AS_ASKED
