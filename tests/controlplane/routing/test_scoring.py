"""Decisions: the cost as written down, and the properties that any decision has."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import (
    NOBODY,
    CandidateScore,
    Decision,
    Knowledge,
    Prompt,
    Reason,
    RoutingPolicy,
    Verdict,
)
from cachefleet_controlplane.routing.later_scores import LaterScores
from cachefleet_controlplane.routing.prompt_blocks import needed_blocks, usable_blocks
from cachefleet_controlplane.routing.throughput import DEFAULT_BATCHED_TOKENS, DEFAULT_TOKENS_PER_SECOND
from cachefleet_controlplane.routing.worth import Worth
from cachefleet_core.block_keys import pack_keys
from tests.controlplane.chains import chain
from tests.reference.candidate import Candidate
from tests.reference.choice import decide
from tests.reference.scoring import LEADING, leading_places
from tests.reference.throughput import DEFAULT_INTER_TOKEN_SECONDS

KEYS = chain(1, 200)
CACHE_AWARE, LEAST_LOADED, ROUND_ROBIN = RoutingPolicy


def prompt(blocks: int = 10, extra: int = 0, **changes: Any) -> Prompt:
    """A prompt of whole blocks of 16 tokens and some tokens more."""
    fields: dict[str, Any] = {
        "tokens": blocks * 16 + extra,
        "keys": pack_keys(KEYS[:blocks]),
        "block_size": 16,
        "max_tokens": 0,
        "knowledge": Knowledge.EXACT,
    }
    return Prompt(**fields | changes)


def candidate(name: str = "a", matched: int = 0, **changes: Any) -> Candidate:
    fields: dict[str, Any] = {
        "worker": name,
        "id": WorkerId(f"default/demo/{name}#0"),
        "pool": "default/demo",
        "url": f"http://{name}",
        "matched_blocks": matched,
        "report_age": 0.5,
        "tokens_per_second": 1000.0,
        "inter_token_seconds": 0.01,
        "batched_tokens": 2048,
    }
    return Candidate(**fields | changes)


def choose(*candidates: Candidate, policy: RoutingPolicy = CACHE_AWARE, of: Prompt | None = None) -> Decision:
    return decide(of or prompt(extra=1), candidates, policy, 5.0)


class TestCost:
    def test_is_the_formula_with_every_part_in_the_score(self) -> None:
        view = candidate(matched=4, queued_tokens=3000, inflight_tokens=100, blocks_free=100, blocks_blank=2)
        (score,) = choose(view).scores
        work = 3000 + 100 + (161 - 64)
        assert (score.predicted_tokens, score.uncached_tokens) == (64, 97)
        assert score.evicted_tokens == (11 - 4 - 2) * 16
        assert score.seconds == pytest.approx(work / 1000 + 0.01 * math.ceil(work / 2048) + 80 / 1000)

    def test_what_nobody_measured_is_the_pools_median_else_a_constant(self) -> None:
        fast, slow = candidate("a", tokens_per_second=900.0), candidate("b", tokens_per_second=100.0)
        new, other = candidate("c", tokens_per_second=None), candidate("d", pool="default/x", tokens_per_second=None)
        assert [score.tokens_per_second for score in choose(fast, slow, new, other).scores] == [500, 100, 500, 500]

        (score,) = choose(candidate(tokens_per_second=None, inter_token_seconds=None, batched_tokens=0)).scores
        assert score.tokens_per_second == DEFAULT_TOKENS_PER_SECOND
        assert score.inter_token_seconds == DEFAULT_INTER_TOKEN_SECONDS
        assert score.batched_tokens == DEFAULT_BATCHED_TOKENS

    def test_rates_of_one_pool_differ_by_chance_unless_they_differ_by_far(self) -> None:
        """Found in a fleet of two equal workers: the one that measured badly at first was never used again."""
        idle, busy = candidate("a", tokens_per_second=5800.0), candidate("b", tokens_per_second=17500.0, last_used=1)
        assert len({score.tokens_per_second for score in choose(idle, busy).scores}) == 1
        assert choose(idle, busy).worker == "a"
        crawling = replace(idle, tokens_per_second=580.0)
        assert choose(crawling, busy).worker == "b"

    @pytest.mark.parametrize(("tokens", "expected"), [(0, 0), (1, 0), (16, 0), (17, 16), (160, 144), (161, 160)])
    @pytest.mark.requirement("A22")
    def test_the_last_token_is_always_computed(self, tokens: int, expected: int) -> None:
        assert 16 * usable_blocks(10, Prompt(tokens=tokens, block_size=16)) == expected

    @pytest.mark.parametrize(("max_tokens", "blocks"), [(0, 2), (12, 2), (13, 3), (256, 18), (9999, 18)])
    def test_a_request_needs_blocks_for_the_start_of_its_answer(self, max_tokens: int, blocks: int) -> None:
        assert needed_blocks(Prompt(tokens=20, block_size=16, max_tokens=max_tokens)) == blocks


class TestCacheAware:
    @pytest.mark.requirement("A13", "C1")
    def test_the_longest_prefix_wins(self) -> None:
        decision = choose(candidate("a", 2), candidate("b", 8), candidate("c", 5))
        assert (decision.worker, decision.url, decision.reason) == ("b", "http://b", Reason.LONGEST_PREFIX)
        assert (decision.verdict, decision.predicted_tokens, decision.at) == (Verdict.ROUTE, 128, 5.0)
        assert decision.uncached_tokens == 161 - 128
        assert [score.worker for score in decision.leading] == ["b", "c", "a"]

    def test_a13_affinity_is_soft_it_yields_to_load_and_to_room(self) -> None:
        """A13: three workers hold 2, 5 and 8 of 10 blocks."""
        two, five, eight = candidate("2", 2), candidate("5", 5), candidate("8", 8)
        assert choose(two, five, eight).worker == "8"
        assert choose(two, five, replace(eight, queued_tokens=5000)).worker == "5"
        assert choose(two, five, replace(eight, requests=1, blocks_total=99, blocks_free=10)).worker == "5"

    def test_until_waiting_for_it_costs_more_than_recomputing(self) -> None:
        busy = candidate("b", 8, queued_tokens=5000)
        decision = choose(candidate("a", 2), busy, candidate("c", 5))
        assert (decision.worker, decision.reason) == ("c", Reason.LOAD_OVER_PREFIX)

    def test_a_stale_report_loses_its_cache_score_and_not_its_place(self) -> None:
        stale = candidate("a", 8, report_age=5.1)
        assert choose(stale, candidate("b", 2)).worker == "b"
        assert choose(stale, candidate("b", 2, queued_tokens=5000)).worker == "a"
        assert choose(stale).predicted_tokens == 0

    def test_with_stale_reports_only_it_decides_by_load_and_says_so(self) -> None:
        decision = choose(candidate("a", 8, report_age=None), candidate("b", report_age=60.0))
        assert (decision.knowledge, decision.reason) == (Knowledge.LOAD, Reason.LOAD_ONLY)

    def test_what_was_just_sent_there_counts_but_is_not_predicted(self) -> None:
        decision = choose(candidate("a"), candidate("b", sent_blocks=10, inflight_tokens=100, requests=1))
        assert (decision.worker, decision.predicted_tokens, decision.reason) == ("b", 0, Reason.PREFIX_IN_FLIGHT)
        assert (decision.scores[1].expected_tokens, decision.uncached_tokens) == (160, 1)

    def test_what_is_held_there_besides_what_was_sent_is_a_prefix_as_any_other(self) -> None:
        held = choose(candidate("a"), candidate("b", 2, sent_blocks=10))
        assert (held.worker, held.predicted_tokens, held.reason) == ("b", 32, Reason.LONGEST_PREFIX)

    def test_an_empty_worker_is_cheaper_than_one_that_must_evict(self) -> None:
        full = candidate("a", 3, blocks_free=50, blocks_blank=0)
        empty = candidate("b", 0, blocks_free=50, blocks_blank=50)
        assert choose(full, empty).worker == "b"
        assert choose(replace(full, blocks_blank=None), empty).worker == "a"

    @pytest.mark.parametrize("level", [Knowledge.EXACT, Knowledge.APPROXIMATE])
    def test_says_what_it_knew(self, level: Knowledge) -> None:
        assert choose(candidate("a"), of=prompt(knowledge=level)).knowledge is level

    def test_a_prompt_without_keys_goes_by_load_and_says_so(self) -> None:
        unknown = Prompt()
        decision = choose(candidate("a", queued_tokens=500), candidate("b", queued_tokens=100), of=unknown)
        assert (decision.worker, decision.knowledge, decision.reason) == ("b", Knowledge.LOAD, Reason.LOAD_ONLY)

    @pytest.mark.parametrize(("tokens", "reason"), [(1, "short_prompt"), (15, "short_prompt"), (16, "cold")])
    def test_a_prompt_shorter_than_a_block_is_told_as_such(self, tokens: int, reason: str) -> None:
        short = prompt(tokens // 16, tokens % 16)
        decision = choose(candidate("a", queued_tokens=500), candidate("b", queued_tokens=100), of=short)
        assert (decision.worker, decision.reason) == ("b", reason)


class TestSpreading:
    def test_cold_prompts_go_to_the_fewest_requests_then_the_least_recently_used(self) -> None:
        a, b, c = candidate("a", last_used=7), candidate("b", last_used=3), candidate("c", last_used=1, requests=1)
        assert (choose(a, b, c).worker, choose(a, b, c).reason) == ("b", Reason.COLD)

    def test_nearly_equal_costs_are_a_tie(self) -> None:
        a, b = candidate("a", tokens_per_second=1010.0, last_used=2), candidate("b", last_used=1)
        assert choose(a, b).worker == "b"
        assert choose(a, replace(b, queued_tokens=50)).worker == "a"

    def test_among_tied_ones_the_longer_prefix_wins(self) -> None:
        long = prompt(blocks=200)
        assert choose(candidate("a", 2, last_used=9), candidate("b", 1), of=long).worker == "a"

    @pytest.mark.parametrize("policy", RoutingPolicy)
    def test_a_row_of_cold_prompts_uses_every_worker_equally(self, policy: RoutingPolicy) -> None:
        views = [candidate(name) for name in "abcd"]
        used = []
        for turn in range(12):
            chosen = choose(*views, policy=policy).worker
            used.append(chosen)
            views = [replace(view, last_used=turn + 1) if view.worker == chosen else view for view in views]
        assert [used.count(name) for name in "abcd"] == [3, 3, 3, 3]


class TestOtherPolicies:
    def test_least_loaded_does_not_look_at_caches(self) -> None:
        holder, idle = candidate("a", 10, queued_tokens=200), candidate("b")
        decision = choose(holder, idle, policy=LEAST_LOADED)
        assert (decision.worker, decision.reason, decision.knowledge) == ("b", Reason.LEAST_LOADED, Knowledge.LOAD)

    def test_least_loaded_counts_requests_where_nothing_waits(self) -> None:
        assert choose(candidate("a", 10, requests=3), candidate("b", requests=2), policy=LEAST_LOADED).worker == "b"

    def test_round_robin_takes_them_in_turn_whatever_their_load(self) -> None:
        decision = choose(
            candidate("a", 10, last_used=4), candidate("b", last_used=2, queued_tokens=9999), policy=ROUND_ROBIN
        )
        assert (decision.worker, decision.reason) == ("b", Reason.ROUND_ROBIN)

    def test_each_still_says_what_the_index_predicts(self) -> None:
        for policy in (LEAST_LOADED, ROUND_ROBIN):
            assert choose(candidate("a", 3), policy=policy).predicted_tokens == 48


class TestFit:
    def test_a_worker_without_room_is_no_candidate(self) -> None:
        full = candidate("a", 10, blocks_free=5, requests=1)
        decision = choose(full, candidate("b", blocks_free=50, requests=1))
        assert (decision.worker, decision.reason) == ("b", Reason.LOAD_OVER_PREFIX)
        assert [score.fits for score in decision.scores] == [False, True]

    def test_an_idle_one_always_is(self) -> None:
        assert choose(candidate("a", 10, blocks_free=5)).reason is Reason.LONGEST_PREFIX

    def test_a_stale_report_excludes_nobody(self) -> None:
        view = candidate("a", 10, blocks_free=5, requests=1, report_age=9.0)
        assert choose(view).reason is Reason.LOAD_ONLY

    def test_with_room_nowhere_it_waits_and_shows_who_will_be_done_soonest(self) -> None:
        a = candidate("a", 10, blocks_free=5, requests=1, queued_tokens=900)
        b = candidate("b", blocks_free=5, requests=1)
        decision = choose(a, b)
        assert (decision.verdict, decision.worker, decision.reason) == (Verdict.QUEUE, "", Reason.NO_ROOM)
        assert (decision.predicted_tokens, decision.uncached_tokens) == (0, 161)
        assert [score.worker for score in decision.leading] == ["b", "a"]

    def test_blocks_that_are_in_use_for_certain_are_shared(self) -> None:
        """It needs 11 and holds 10, of which 4 may be idle."""
        full = candidate("a", 10, blocks_free=5, requests=1, blocks_idle=4, blocks_used=90)
        assert choose(full).scores[0].needed_blocks == 5
        assert choose(full).verdict is Verdict.ROUTE
        assert choose(replace(full, blocks_idle=5)).verdict is Verdict.QUEUE
        assert choose(replace(full, blocks_used=5)).verdict is Verdict.QUEUE

    @pytest.mark.parametrize("requests", [0, 3])
    def test_what_no_worker_ever_has_room_for_is_refused_at_once(self, requests: int) -> None:
        views = [candidate(name, blocks_total=10, blocks_free=10, requests=requests) for name in "ab"]
        decision = choose(*views)
        assert (decision.verdict, decision.reason, decision.worker) == (Verdict.REJECT, Reason.TOO_LARGE, "")
        assert [score.total_blocks for score in decision.scores] == [10, 10]
        assert choose(views[0], replace(views[1], blocks_total=11)).verdict is not Verdict.REJECT

    @pytest.mark.parametrize("unknown", [{"blocks_total": None}, {"report_age": 9.0}])
    def test_unless_somebody_may_be_larger_than_is_known(self, unknown: dict[str, Any]) -> None:
        view = replace(candidate(blocks_total=10, blocks_free=10), **unknown)
        assert choose(view).verdict is Verdict.ROUTE

    def test_least_loaded_looks_at_room_and_round_robin_does_not(self) -> None:
        full = candidate("a", blocks_free=5, requests=1)
        assert choose(full, policy=LEAST_LOADED).verdict is Verdict.QUEUE
        assert choose(full, candidate("b", queued_tokens=9000), policy=LEAST_LOADED).worker == "b"
        assert choose(replace(full, blocks_total=5), policy=ROUND_ROBIN).worker == "a"

    def test_without_candidates_it_rejects(self) -> None:
        decision = choose()
        assert (decision.verdict, decision.reason, decision.worker) == (Verdict.REJECT, Reason.NO_READY_WORKER, "")
        assert decision.uncached_tokens == 161
        assert list(decision.leading) == list(decision.scores) == []


class TestLeading:
    def test_the_chosen_the_next_best_and_those_that_hold_most_tell_of_a_large_fleet(self) -> None:
        busy = [candidate(f"b{held}", held, queued_tokens=9000) for held in range(1, 10)]
        decision = choose(candidate("idle"), *busy, candidate("next", queued_tokens=1000))
        assert [score.worker for score in decision.leading] == ["idle", "next", "b9", "b8", "b7", "b6", "b5", "b4"]
        assert (len(decision.leading), len(decision.scores)) == (LEADING, 11)

    def test_of_equal_ones_the_less_busy_come_first(self) -> None:
        known = [(3, 9), (0, 0), (3, 1), (0, 5), (4, 5)]
        assert leading_places(known, 1, None) == [1, 4, 2, 0, 3]
        assert leading_places(known, 1, 3) == [1, 3, 4, 2, 0]

    def test_scores_that_come_later_are_counted_without_being_made(self) -> None:
        made: list[Sequence[CandidateScore]] = []

        def make() -> Sequence[CandidateScore]:
            made.append(choose(*map(candidate, "abc")).scores)
            return made[-1]

        scores = LaterScores(3, make)
        assert (len(scores), made) == (3, [])
        assert [score.worker for score in scores] == ["a", "b", "c"]
        assert len(made) == 1


# Properties.

names = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)
tokens = st.integers(0, 100_000)


small = st.integers(0, 40)
blocks = st.just({"blocks_total": None, "blocks_free": None}) | st.fixed_dictionaries(
    {
        "blocks_total": small,
        "blocks_free": small,
        "blocks_reserved": small,
        "blocks_idle": small,
        "blocks_used": small,
    }
)
"""As tight as the prompts are large."""


@st.composite
def views(draw: st.DrawFn) -> list[Candidate]:
    return [
        candidate(
            name,
            draw(st.integers(0, 20)),
            pool=draw(st.sampled_from(["default/a", "default/b"])),
            sent_blocks=draw(st.integers(0, 20)),
            report_age=draw(st.none() | st.floats(0, 20)),
            queued_tokens=draw(tokens),
            inflight_tokens=draw(tokens),
            tokens_per_second=draw(st.none() | st.floats(1, 1e6)),
            inter_token_seconds=draw(st.none() | st.floats(0, 1)),
            batched_tokens=draw(st.integers(0, 16384)),
            **draw(blocks),
            blocks_blank=draw(st.none() | st.integers(0, 1000)),
            requests=draw(st.integers(0, 50)),
            last_used=draw(st.integers(0, 1000)),
        )
        for name in draw(names)
    ]


prompts = st.builds(
    prompt,
    blocks=st.integers(0, 20),
    extra=st.integers(0, 15),
    max_tokens=st.integers(0, 5000),
    knowledge=st.sampled_from(list(Knowledge)),
)
policies = st.sampled_from(list(RoutingPolicy))


@given(prompts, views(), policies)
def test_the_choice_is_a_candidate_and_every_candidate_is_explained(
    of: Prompt, among: list[Candidate], policy: RoutingPolicy
) -> None:
    decision = decide(of, among, policy, 0.0)
    assert decision.id in {view.id for view in among} | ({NOBODY} if decision.verdict is not Verdict.ROUTE else set())
    assert [score.id for score in decision.scores] == [view.id for view in among]
    assert all(math.isfinite(score.seconds) and score.seconds >= 0 for score in decision.scores)
    assert all(0 <= score.predicted_tokens <= max(0, of.tokens - 1) for score in decision.scores)


@given(prompts, views(), policies)
def test_the_order_of_candidates_does_not_matter(of: Prompt, among: list[Candidate], policy: RoutingPolicy) -> None:
    assert decide(of, among, policy, 0.0).id == decide(of, among[::-1], policy, 0.0).id


@given(prompts, views(), policies, st.integers(1, 10_000), st.data())
def test_more_load_never_makes_a_loser_win(
    of: Prompt, among: list[Candidate], policy: RoutingPolicy, more: int, data: st.DataObject
) -> None:
    winner = decide(of, among, policy, 0.0)
    assume(winner.verdict is Verdict.ROUTE)
    loser = data.draw(st.sampled_from(among))
    assume(loser.id != winner.id)
    field = data.draw(st.sampled_from(["queued_tokens", "inflight_tokens", "requests"]))
    # An idle worker always fits; with its first request that ends, which is another question.
    assume(field != "requests" or loser.requests)
    busier = replace(loser, **{field: getattr(loser, field) + more})
    again = decide(of, [busier if view is loser else view for view in among], policy, 0.0)
    assert again.id != loser.id


@given(prompts, views(), st.integers(1, 20))
def test_a_longer_match_never_makes_a_winner_lose(of: Prompt, among: list[Candidate], more: int) -> None:
    decision = decide(of, among, CACHE_AWARE, 0.0)
    assume(decision.verdict is Verdict.ROUTE)
    winner = next(view for view in among if view.id == decision.id)
    better = replace(winner, matched_blocks=winner.matched_blocks + more)
    again = decide(of, [better if view is winner else view for view in among], CACHE_AWARE, 0.0)
    assert again.id == winner.id


@given(prompts, views())
def test_without_keys_caches_make_no_difference(of: Prompt, among: list[Candidate]) -> None:
    """But for the room that matched blocks in use would save, which no prompt without keys has."""
    blind, among = replace(of, keys=b""), [replace(view, blocks_used=0) for view in among]
    bare = [replace(view, matched_blocks=0, sent_blocks=0) for view in among]
    decision = decide(blind, among, CACHE_AWARE, 0.0)
    assert decision.id == decide(blind, bare, CACHE_AWARE, 0.0).id
    assert decision.knowledge is Knowledge.LOAD


def spare(of: Prompt, view: Candidate) -> int | None:
    """Blocks that may still be taken after ``of`` was sent there, by ``room``'s formula; None where all may."""
    if view.stale or view.blocks_free is None or not view.requests:
        return None
    held = min(view.matched_blocks, max(0, of.tokens - 1) // 16)
    return view.blocks_free - needed_blocks(of) + min(max(0, held - view.blocks_idle), view.blocks_used)


def may_ever(of: Prompt, view: Candidate) -> bool:
    return view.stale or view.blocks_total is None or needed_blocks(of) <= view.blocks_total


def has_room(of: Prompt, view: Candidate) -> bool:
    left = spare(of, view)
    return may_ever(of, view) and (left is None or left >= 0)


@given(prompts, views(), st.sampled_from([CACHE_AWARE, LEAST_LOADED]))
def test_nobody_is_sent_what_would_push_it_below_its_reserve_and_all_else_waits_or_is_refused(
    of: Prompt, among: list[Candidate], policy: RoutingPolicy
) -> None:
    decision = decide(of, among, policy, 0.0)
    room = {view.id for view in among if has_room(of, view)}
    assert (decision.id in room) == (decision.verdict is Verdict.ROUTE) == bool(room)
    assert (decision.verdict is Verdict.QUEUE) == (not room and any(may_ever(of, view) for view in among))
    assert (decision.reason is Reason.TOO_LARGE) == (not any(may_ever(of, view) for view in among))
    assert [score.fits for score in decision.scores] == [view.id in room for view in among]


@given(prompts, views())
def test_round_robin_always_finds_a_place(of: Prompt, among: list[Candidate]) -> None:
    assert decide(of, among, ROUND_ROBIN, 0.0).verdict is Verdict.ROUTE


def test_what_waiting_paid_is_taken_off_for_those_alone_who_do_not_hold_the_prefix() -> None:
    """Taken off for its holder too, it would pay for no copy: their difference stays as it was."""
    worth = Worth(0.1, requests_per_second=2.0, computed_per_second=400.0, request_tokens=160.0)
    holder = candidate("holder", 8, queued_tokens=400, worth=worth)
    other = candidate("other", 2, worth=worth)
    before = choose(holder, other, of=prompt(extra=1))
    paid = choose(holder, other, of=prompt(extra=1, paid_seconds=0.02, paid_tokens=before.prefix_tokens))
    least = {one.worker: one.seconds for one in before.scores}
    assert {one.worker: one.seconds for one in paid.scores} == {
        "holder": least["holder"],
        "other": pytest.approx(least["other"] - 0.02),
    }
    assert [one.paid_seconds for one in paid.scores] == [0, pytest.approx(0.02)]
