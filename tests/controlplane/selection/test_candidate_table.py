"""What a kept board must notice, one thing at a time."""

from __future__ import annotations

import pytest
from cachefleet_native import pure
from msgspec.structs import replace

from cachefleet_controlplane.index.worker_id import worker_id
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Reason, RoutingPolicy
from cachefleet_controlplane.selection.eligibility import Duty
from cachefleet_controlplane.workers.worker import Worker
from tests.controlplane.chains import stored
from tests.controlplane.fleets import MODEL, FakeLink, pool, view
from tests.controlplane.frames import CONTRACT, delta, snapshot, state
from tests.controlplane.selection.calls import counted_calls
from tests.controlplane.selection.test_selector import CHAINS, LONG, NAMES, PROMPTS, assert_alike
from tests.reference.loads import ModelledFleet
from tests.reference.scoring import LEADING
from tests.reference.selection import ReferenceSelector


@pytest.fixture
def fleet() -> ModelledFleet:
    """Three workers that hold nothing, four and eight blocks of a chain."""
    made = ModelledFleet()
    made.update_pools([view(pool(), NAMES)])
    for number, name in enumerate(NAMES):
        made.report(name, CHAINS[0][: 4 * number])
    return made


@pytest.fixture
def plain(fleet: ModelledFleet) -> ReferenceSelector:
    return ReferenceSelector(fleet)


@pytest.mark.parametrize("policy", RoutingPolicy)
@pytest.mark.parametrize("exclude", [frozenset(), frozenset({"default/demo/demo-2"})], ids=["all", "but one"])
def test_other_policies_and_exclusions_are_heeded(
    fleet: ModelledFleet, plain: ReferenceSelector, policy: RoutingPolicy, exclude: frozenset[str]
) -> None:
    for prompt in PROMPTS:
        assert_alike(fleet, plain, prompt, policy=policy, exclude=exclude)


@pytest.mark.parametrize("tokens", [2**49, 2**63, 10**6])
def test_a_load_beyond_native_numbers_is_as_large_as_any(
    fleet: ModelledFleet, plain: ReferenceSelector, tokens: int
) -> None:
    connection = fleet.report("demo-1").connection
    fleet.route(MODEL, LONG)
    fleet.receive(connection, state(0, waiting_tokens=tokens, waiting=tokens))
    queued = {score.worker: score.queued_tokens for score in fleet.route(MODEL, LONG).scores}
    assert queued["demo-1"] == min(tokens, 2**48)
    assert fleet.route(MODEL, LONG, exclude=frozenset({"default/demo/demo-2"})).worker == "demo-0"
    fleet.receive(connection, state(0, waiting_tokens=5))
    assert_alike(fleet, plain, LONG)


@pytest.mark.parametrize("served", [0, 30_000, 200_000])
def test_trust_counts_alike_and_at_once(fleet: ModelledFleet, plain: ReferenceSelector, served: int) -> None:
    """Also where everybody is doubted, and some of a doubted worker's blocks count."""
    fleet.route(MODEL, LONG)
    for name in reversed(NAMES):
        fleet.served(worker_id("default/demo", name), 200_000, served)
        for prompt in PROMPTS:
            assert_alike(fleet, plain, prompt)
        fleet.begin(fleet.route(MODEL, LONG), LONG)
        assert_alike(fleet, plain, LONG)


def test_scores_are_of_the_moment_of_the_decision(fleet: ModelledFleet) -> None:
    decision, same = fleet.route(MODEL, LONG), fleet.route(MODEL, LONG)
    before, led = list(same.scores), list(same.leading)
    fleet.report("demo-0", CHAINS[0], running=9, epoch="e9")
    fleet.now += 20
    fleet.route(MODEL, LONG)
    assert (list(decision.scores), list(decision.leading)) == (before, led)
    assert sorted(led, key=before.index) == before
    assert [score.matched_blocks for score in before] == [0, 4, 8]


def test_those_that_tell_most_of_a_large_fleet_are_the_twins() -> None:
    fleet = ModelledFleet()
    names = [f"demo-{number}" for number in range(12)]
    fleet.update_pools([view(pool(), names)])
    for number, name in enumerate(names):
        fleet.report(name, CHAINS[0][: number // 2], running=number % 3)
    assert_alike(fleet, ReferenceSelector(fleet), LONG)
    assert len(fleet.route(MODEL, LONG).leading) == LEADING


def test_a_board_is_kept_while_nobody_comes_or_goes(fleet: ModelledFleet) -> None:
    selector = fleet._selector
    fleet.route(MODEL, LONG)
    table = selector._tables.kept[MODEL, Duty.ANSWER]
    fleet.now += 4
    fleet.begin(fleet.route(MODEL, LONG), LONG).finish()
    fleet.now += 4
    assert fleet.route("nobody", LONG).worker == ""
    assert fleet.route(MODEL, LONG).knowledge is Knowledge.LOAD
    assert selector._tables.kept == {(MODEL, Duty.ANSWER): table}
    fleet.worker_failed("default/demo/demo-2")
    fleet.route(MODEL, LONG)
    assert selector._tables.kept[MODEL, Duty.ANSWER] is table
    fleet.update_pools([view(pool(), NAMES[:2])])
    fleet.route(MODEL, LONG)
    assert selector._tables.kept[MODEL, Duty.ANSWER] is not table


def test_room_is_that_of_now(fleet: ModelledFleet, plain: ReferenceSelector) -> None:
    for name in NAMES:
        fleet.report(name, blocks_total=100, blocks_free=60, blocks_idle=0, running=1)
    seen = set[int]()
    fleet.now += 1
    requests = [fleet.begin(fleet.route(MODEL, LONG), LONG) for _ in NAMES]
    for request in requests:
        assert_alike(fleet, plain, LONG)
        seen.add(sum(score.free_blocks or 0 for score in fleet.route(MODEL, LONG).scores))
        request.finish()
    assert len(seen) > 2, "it has changed"


def test_a_pool_without_workers_before_another_counts_for_nothing() -> None:
    fleet = ModelledFleet()
    fleet.update_pools([view(pool(), []), view(pool("other"), ["demo-0"])])
    assert fleet.route(MODEL, LONG).pool == "default/other"


def test_an_exclusion_of_one_request_costs_no_other_its_table(fleet: ModelledFleet) -> None:
    fleet.route(MODEL, LONG)
    table = fleet._selector._tables.kept[MODEL, Duty.ANSWER]
    assert fleet.route(MODEL, LONG, exclude=frozenset({"default/demo/demo-2"})).worker == "demo-1"
    assert fleet._selector._tables.kept == {(MODEL, Duty.ANSWER): table}


def test_an_exclusion_looks_at_no_worker_anew(fleet: ModelledFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.route(MODEL, LONG)
    judged = counted_calls(monkeypatch, Worker, "stand")
    decision = fleet.route(MODEL, LONG, exclude=frozenset({"default/demo/demo-2"}))
    assert (decision.worker, decision.candidates, decision.predicted_tokens) == ("demo-1", 2, 64)
    assert {score.worker for score in (*decision.scores, *decision.leading)} == {"demo-0", "demo-1"}
    assert not judged


def test_where_all_preferred_workers_are_excluded_others_are_left(
    fleet: ModelledFleet, plain: ReferenceSelector
) -> None:
    fleet.worker_failed("default/demo/demo-0")
    others = frozenset({"default/demo/demo-1", worker_id("default/demo", "demo-2")})
    assert fleet.route(MODEL, LONG, exclude=others).worker == "demo-0"
    assert_alike(fleet, plain, LONG, exclude=others)


def test_the_one_worker_of_the_last_of_several_pools_is_chosen() -> None:
    fleet = ModelledFleet()
    fleet.update_pools([view(pool(name), [f"{name}-0"]) for name in ("a", "b", "c", "d")])
    for name in "abcd":
        fleet.report(f"{name}-0", CHAINS[0][:4], pool=f"default/{name}")
    others = frozenset(f"default/{name}/{name}-0" for name in "abc")
    assert fleet.route(MODEL, LONG, exclude=others).worker == "d-0"
    fleet.update_pools([view(pool(name)) for name in "abc"] + [view(pool("d"), ["d-0"])])
    assert fleet.route(MODEL, LONG).worker == "d-0"
    assert [endpoint.name for endpoint in fleet.renderers(MODEL, 2)] == ["d-0"]


def test_what_an_excluded_worker_has_measured_counts(fleet: ModelledFleet) -> None:
    link = fleet.report("demo-2", prefill_tokens_per_second=123.0)
    for _ in range(2):
        fleet.receive(link.connection, state(0, prefill_tokens_per_second=123.0))
    scores = fleet.route(MODEL, LONG, exclude=frozenset({"default/demo/demo-2"})).scores
    assert {(score.worker, score.tokens_per_second) for score in scores} == {("demo-0", 123.0), ("demo-1", 123.0)}


class TestRoom:
    """LONG needs 19 blocks; the fleet's pool keeps 5 % free."""

    def fill(self, fleet: ModelledFleet, holds: int, **blocks: int) -> None:
        for name in NAMES:
            fleet.report(name, CHAINS[0][:holds], running=1, **blocks)

    def test_both_doubt_what_a_doubted_one_shares(self, fleet: ModelledFleet, plain: ReferenceSelector) -> None:
        """It would have room for LONG only if all that it claims were counted."""
        self.fill(fleet, 11, blocks_total=41, blocks_free=11, blocks_idle=1)
        for name in NAMES:
            fleet.served(worker_id("default/demo", name), 200_000, 0)
        assert_alike(fleet, plain, LONG)
        assert fleet.route(MODEL, LONG).reason is Reason.NO_ROOM

    @pytest.mark.parametrize(
        ("holds", "blocks", "reason"),
        [
            (0, {"blocks_total": 41, "blocks_free": 21}, Reason.COLD),
            (0, {"blocks_total": 41, "blocks_free": 20}, Reason.NO_ROOM),
            (0, {"blocks_total": 19, "blocks_free": 18}, Reason.TOO_LARGE),
            (11, {"blocks_total": 41, "blocks_free": 11, "blocks_idle": 1}, Reason.LONGEST_PREFIX),
            (11, {"blocks_total": 41, "blocks_free": 11, "blocks_idle": 2}, Reason.NO_ROOM),
        ],
    )
    def test_both_find_room_or_none(
        self, fleet: ModelledFleet, plain: ReferenceSelector, holds: int, blocks: dict[str, int], *, reason: Reason
    ) -> None:
        self.fill(fleet, holds, **blocks)
        assert_alike(fleet, plain, LONG)
        assert fleet.route(MODEL, LONG).reason is reason

    def test_the_one_that_has_room_for_what_it_shares_is_seen(
        self, fleet: ModelledFleet, plain: ReferenceSelector
    ) -> None:
        self.fill(fleet, 11, blocks_total=41, blocks_free=11, blocks_idle=9)
        fleet.report("demo-1", CHAINS[0][:11], running=2, blocks_total=41, blocks_free=11, blocks_idle=1)
        assert_alike(fleet, plain, LONG)
        assert fleet.route(MODEL, LONG).worker == "demo-1"

    def test_idle_ones_that_are_too_small_are_no_candidates(
        self, fleet: ModelledFleet, plain: ReferenceSelector
    ) -> None:
        for name in NAMES:
            fleet.report(name, blocks_total=19, blocks_free=18)
        assert_alike(fleet, plain, LONG)
        fleet.report("demo-2", blocks_total=20, blocks_free=19)
        assert_alike(fleet, plain, LONG)
        assert fleet.route(MODEL, LONG).worker == "demo-2"


class TestWhatOnlyTimeOrOneEventTells:
    """One thing changes a worker's row, and nothing else has it looked at again."""

    @pytest.fixture
    def link(self, fleet: ModelledFleet) -> FakeLink:
        return fleet.report("demo-2", CHAINS[0][:8])

    def agree(self, fleet: ModelledFleet, plain: ReferenceSelector, *, seconds: float = 0.0) -> Decision:
        fleet.now += seconds
        assert_alike(fleet, plain, LONG)
        return fleet.route(MODEL, LONG)

    def speak(self, fleet: ModelledFleet, link: FakeLink, sequence: int = 0) -> None:
        digest = fleet.index.digest(worker_id("default/demo", "demo-2"))
        fleet.receive(link.connection, state(sequence, digest=digest))

    def test_being_out_of_step_for_long(self, fleet: ModelledFleet, plain: ReferenceSelector, link: FakeLink) -> None:
        fleet.receive(link.connection, delta(7, stored(CHAINS[1])))
        assert self.agree(fleet, plain).worker == "demo-2"
        fleet.now += 3
        self.speak(fleet, link)
        assert self.agree(fleet, plain).worker == "demo-2"
        assert self.agree(fleet, plain, seconds=2.1).scores[2].matched_blocks == 0

    def test_being_in_step_again(self, fleet: ModelledFleet, plain: ReferenceSelector, link: FakeLink) -> None:
        fleet.receive(link.connection, delta(7, stored(CHAINS[1])))
        fleet.now += 4
        self.speak(fleet, link)
        assert self.agree(fleet, plain, seconds=2).scores[2].matched_blocks == 0
        fleet.receive(link.connection, snapshot(7, CHAINS[0][:9]))
        assert self.agree(fleet, plain).scores[2].matched_blocks == 9

    def test_patience_with_a_request_that_has_no_token_yet(
        self, fleet: ModelledFleet, plain: ReferenceSelector, link: FakeLink
    ) -> None:
        fleet.begin(fleet.route(MODEL, LONG), LONG)
        for _ in range(9):
            fleet.now += 3
            self.speak(fleet, link)
        assert self.agree(fleet, plain).scores[2].inflight_tokens > 0
        assert self.agree(fleet, plain, seconds=4).scores[2].inflight_tokens == 0

    def test_a_pause_that_is_over(self, fleet: ModelledFleet, plain: ReferenceSelector) -> None:
        fleet.worker_failed("default/demo/demo-2")
        assert len(self.agree(fleet, plain).scores) == 2
        assert len(self.agree(fleet, plain, seconds=1.1).scores) == 3

    def test_the_others_contract(self, fleet: ModelledFleet, plain: ReferenceSelector) -> None:
        """The last worker to come back with another contract brings back those that came before it."""
        left = []
        for name in NAMES:
            fleet.report(name, contract=replace(CONTRACT, tokenizer="sha256:bb"))
            left.append(len(self.agree(fleet, plain).scores))
        assert left == [2, 1, 3]

    def test_not_fitting_into_the_index(self) -> None:
        fleet = ModelledFleet(max_held=10)
        fleet.update_pools([view(pool(), NAMES)])
        connection = fleet.report("demo-0", CHAINS[0][:8]).connection
        plain = ReferenceSelector(fleet)
        assert self.agree(fleet, plain).knowledge is Knowledge.EXACT
        fleet.receive(connection, delta(1, stored(CHAINS[2])))
        assert self.agree(fleet, plain).knowledge is Knowledge.LOAD


def judged(fleet: ModelledFleet) -> set[str]:
    return {score.worker for score in fleet.route(MODEL, LONG).scores}


def test_a_worker_that_refused_the_key_is_asked_again_by_one_request_once_its_time_has_come(
    fleet: ModelledFleet, plain: ReferenceSelector
) -> None:
    fleet.key_refused("default/demo/demo-2")
    fleet.now += pure.KEY_RETRY_SECONDS - 0.1
    assert judged(fleet) == {"demo-0", "demo-1"}
    fleet.now += 0.1  # and nothing else has changed
    assert judged(fleet) == set(NAMES)
    assert_alike(fleet, plain, LONG)
    again = fleet.route(MODEL, LONG, exclude=frozenset({"default/demo/demo-0", "default/demo/demo-1"}))
    with fleet.begin(again, LONG):
        assert judged(fleet) == {"demo-0", "demo-1"}
        assert_alike(fleet, plain, LONG)
