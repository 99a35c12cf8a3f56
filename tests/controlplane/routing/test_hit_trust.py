"""Trust in a worker's claims, and what a decision makes of it."""

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.index.worker_id import worker_id
from cachefleet_controlplane.routing.decision import Knowledge, Prompt, RoutingPolicy
from cachefleet_controlplane.routing.hit_trust import (
    ALLOWANCE_TOKENS,
    HALF_LIFE_SECONDS,
    NO_EVIDENCE,
    WHOLE,
    HitEvidence,
    faded,
    learnt,
    trust_in,
)
from cachefleet_core.block_keys import pack_keys
from tests.controlplane.chains import chain
from tests.controlplane.fleets import MODEL, LiveFleet, fleet_of, wid
from tests.reference.candidate import Candidate
from tests.reference.choice import decide
from tests.reference.scoring import counted

KEYS = chain(1, 20)
PROMPT = Prompt(321, pack_keys(KEYS), 16, 16, Knowledge.EXACT)
tokens = st.integers(0, 200_000)
answers = st.lists(st.tuples(tokens, tokens), max_size=30)
times = st.floats(0, 10_000)


def after(answers: list[tuple[int, int]], apart: float = 1.0) -> HitEvidence:
    evidence = NO_EVIDENCE
    for number, (claimed, served) in enumerate(answers):
        evidence = learnt(evidence, claimed, served, number * apart)
    return evidence


@given(answers=answers, more=tokens, later=times)
def test_it_stays_within_its_bounds_and_only_rises_with_time(
    answers: list[tuple[int, int]], more: int, later: float
) -> None:
    evidence = after(answers)
    assert 0 <= trust_in(evidence) <= WHOLE
    assert trust_in(faded(evidence, evidence.at + later)) >= trust_in(evidence)


@given(answers=answers, claimed=tokens, served=tokens, fewer=tokens)
def test_who_served_more_is_trusted_no_less(
    answers: list[tuple[int, int]], claimed: int, served: int, fewer: int
) -> None:
    evidence = after(answers)
    less, more = sorted([served, fewer])
    better, worse = (trust_in(learnt(evidence, claimed, told, evidence.at)) for told in (more, less))
    assert better >= worse


@given(st.lists(tokens, max_size=30))
def test_who_serves_half_of_its_claims_is_trusted_wholly(claims: list[int]) -> None:
    assert trust_in(after([(claimed, -(-claimed // 2)) for claimed in claims])) == WHOLE


@given(blocks=st.integers(0, 2**32), answers=answers)
def test_no_more_blocks_are_counted_than_there_are(blocks: int, answers: list[tuple[int, int]]) -> None:
    assert 0 <= counted(blocks, trust_in(after(answers))) <= blocks
    assert counted(blocks, WHOLE) == blocks


@given(matched=st.integers(0, 100), sent=st.integers(0, 100), trust=st.integers(0, WHOLE), less=st.integers(0, WHOLE))
def test_less_trust_never_makes_a_worker_cheaper(matched: int, sent: int, trust: int, less: int) -> None:
    def cost(trusted: int) -> float:
        view = Candidate(
            worker="a",
            id=worker_id("p", "a"),
            pool="p",
            url="u",
            matched_blocks=matched,
            sent_blocks=sent,
            report_age=0.1,
            trust=trusted,
        )
        return decide(Prompt(1000, bytes(8 * 62), 16), [view], RoutingPolicy.CACHE_AWARE, 0.0).scores[0].seconds

    assert cost(min(trust, less)) >= cost(max(trust, less))


def test_a_few_misses_do_not_matter_and_many_do() -> None:
    assert trust_in(after([(ALLOWANCE_TOKENS, 0)])) == WHOLE
    assert trust_in(after([(10 * ALLOWANCE_TOKENS, 0)])) == 2 * WHOLE // 11


def test_it_recovers_by_time_and_faster_by_hits() -> None:
    evidence = after([(50_000, 0)] * 10)
    assert trust_in(evidence) < 100
    assert trust_in(faded(evidence, evidence.at + 5 * HALF_LIFE_SECONDS)) == WHOLE
    for _ in range(10):
        evidence = learnt(evidence, 50_000, 50_000, evidence.at + 1)
    assert trust_in(evidence) == WHOLE


class TestRouting:
    def chosen(self, fleet: LiveFleet) -> tuple[str, int]:
        decision = fleet.route(MODEL, PROMPT)
        return decision.worker, decision.predicted_tokens

    def test_a_worker_that_serves_nothing_loses_its_place_and_gets_it_back(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-0", KEYS)
        link = fleet.report("demo-1", KEYS[:10])
        assert self.chosen(fleet) == ("demo-0", 320)
        fleet.served(wid("demo-0"), 200_000, 0)
        assert self.chosen(fleet) == ("demo-1", 160)
        assert fleet.worker("demo-0").trust < 0.2
        fleet.report("demo-0", KEYS, epoch="e2")
        assert fleet.worker("demo-0").trust < 0.2, "a new epoch is no proof"
        fleet.served(wid("demo-0"), 200_000, 200_000)
        assert self.chosen(fleet) == ("demo-0", 320)
        assert link.closed == []
