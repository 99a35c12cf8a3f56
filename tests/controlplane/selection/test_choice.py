"""The choice in native code: what it is given, and that it is the reference's whatever the candidates."""

from __future__ import annotations

from typing import Any, NamedTuple

import cachefleet_native
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import CandidateScore, Knowledge, Prompt, RoutingPolicy
from cachefleet_controlplane.routing.hit_trust import WHOLE
from cachefleet_controlplane.routing.worth import UNLEARNT, Worth
from cachefleet_controlplane.store.decision_records import CandidateRecord
from cachefleet_core.block_keys import pack_keys
from tests.controlplane.chains import chain
from tests.reference.candidate import Candidate
from tests.reference.candidate_view import CandidateView
from tests.reference.choice import decide


class Named(NamedTuple):
    """What a record has of a worker."""

    id: str
    name: str
    pool: str


KEYS = chain(1, 40)
SIZE = 16
tokens = st.integers(0, 5000)
worths = st.just(UNLEARNT) | st.builds(Worth, st.floats(0, 1), st.floats(0, 50), st.floats(0, 2e5), st.floats(0, 1e5))


@st.composite
def views(draw: st.DrawFn) -> list[Candidate]:
    count = draw(st.integers(1, 6))
    return [
        Candidate(
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
            blocks_total=draw(st.none() | st.integers(0, 100)),
            blocks_idle=draw(st.integers(0, 40)),
            blocks_used=draw(st.integers(0, 40)),
            trust=draw(st.sampled_from([WHOLE, WHOLE, 500, 333, 0])),
            blocks_free=draw(st.none() | st.integers(0, 100)),
            blocks_blank=draw(st.none() | st.integers(0, 100)),
            requests=draw(st.integers(0, 3)),
            last_used=draw(st.integers(0, 3)),
            worth=draw(worths),
            adapter_seconds=draw(st.sampled_from([0.0, 0.0, 0.05])),
        )
        for number in range(count)
    ]


def busy(name: str, **changes: Any) -> Candidate:
    """One with no room."""
    own: dict[str, Any] = {"worker": name, "id": WorkerId(name), "pool": "p", "url": "", "report_age": 0.1}
    own |= {"requests": 1, "blocks_free": 0, "tokens_per_second": 1000.0}
    return Candidate(**(own | changes))


ONLY_ONE_FITS = [busy("a", requests=0), busy("b", queued_tokens=10), busy("c", queued_tokens=900, matched_blocks=30)]
prompts = st.builds(
    Prompt,
    tokens=st.integers(0, 700),
    keys=st.sampled_from([b"", pack_keys(KEYS), pack_keys(KEYS), pack_keys(KEYS)]),
    block_size=st.sampled_from([0, SIZE, SIZE, SIZE]),
    max_tokens=st.integers(0, 300),
    knowledge=st.sampled_from([*Knowledge, Knowledge.EXACT, Knowledge.EXACT]),
    paid_seconds=st.sampled_from([0.0, 0.0, 0.01, 1.0, 1e6]),
    paid_tokens=st.integers(0, 700),
    prompts=st.sampled_from([1, 1, 3]),
    choices=st.sampled_from([1, 1, 4]),
    most_blocks=st.sampled_from([0, 50]),
)
candidate_views = st.builds(
    CandidateView,
    reported_at=st.none() | st.floats(-9, 0),
    queued_tokens=tokens,
    inflight_tokens=tokens,
    tokens_per_second=st.none() | st.floats(1, 1e5),
    inter_token_seconds=st.none() | st.floats(1e-7, 1),
    blocks_total=st.none() | st.integers(0, 100),
    blocks_free=st.none() | st.integers(0, 100),
    requests=st.integers(0, 3),
)
policies = st.sampled_from([*RoutingPolicy, RoutingPolicy.CACHE_AWARE, RoutingPolicy.CACHE_AWARE])


@example(ONLY_ONE_FITS, Prompt(640, pack_keys(KEYS), SIZE, 100, Knowledge.EXACT), RoutingPolicy.CACHE_AWARE)
@given(views(), prompts, policies)
def test_the_choice_is_that_of_the_reference(
    candidates: list[Candidate], prompt: Prompt, policy: RoutingPolicy
) -> None:
    decide(prompt, candidates, policy, 0.0)  # compares the two


@given(st.lists(candidate_views, min_size=1, max_size=3), st.integers(0, 64), st.sampled_from(["a#0", "c#2", ""]))
def test_encoded_records_are_those_of_the_scores(views: list[CandidateView], block_size: int, chosen: str) -> None:
    choice = table(*views).choose(cachefleet_native.Index(), b"", **ASKED | {"order": "load"})
    assert choice is not None
    workers = [Named(f"{name}#{rank}", f'w"{name}\n', "é/pool") for rank, name in enumerate("abc")]
    made = [
        CandidateRecord.of(
            CandidateScore(worker=workers[place].name, id=WorkerId(workers[place].id), pool="é/pool", **numbers),
            block_size=block_size,
            chosen=workers[place].id == chosen,
        )
        for place, numbers in choice.leading()
    ]
    encoded = choice.leading_records(workers, block_size, chosen)
    assert msgspec.json.decode(encoded, type=list[CandidateRecord]) == made


def test_of_many_candidates_those_lead_that_hold_most() -> None:
    many = [busy(f"w{number:02}", matched_blocks=number % 13, requests=number % 3) for number in range(40)]
    decision = decide(Prompt(640, pack_keys(KEYS), SIZE, 0, Knowledge.EXACT), many, RoutingPolicy.CACHE_AWARE, 0.0)
    assert (decision.candidates, len(decision.leading), len(decision.scores)) == (40, 8, 40)


ASKED: dict[str, Any] = {"now": 0.0, "tokens": 5, "block_size": 16, "needed_blocks": 1, "order": "cost"}


def table(*views: CandidateView) -> cachefleet_native.WorkerTable:
    plane, names = cachefleet_native.Plane(), "abc"
    rows = [plane.row() for _ in views]
    for row, view in zip(rows, views, strict=True):
        cachefleet_native.pure.hold(row, view)
    members = [(row, name, name, 0) for row, name in zip(rows, names, strict=False)]
    return cachefleet_native.WorkerTable(plane, members)


def test_nobody_to_choose_from() -> None:
    assert table().choose(cachefleet_native.Index(), b"", **ASKED) is None


def test_scores_of_all_are_kept_where_they_are_asked_for() -> None:
    candidates = table(CandidateView(), CandidateView())
    for every, kept in ((True, 2), (False, 0)):
        choice = candidates.choose(cachefleet_native.Index(), b"", **ASKED, every=every)
        assert choice is not None
        assert (len(choice.scores()), choice.leading_count) == (kept, 2)


fresh_views = candidate_views.map(lambda view: replace(view, reported_at=0.0))
NOWHERE = {"no_room", "too_large"}


@given(st.lists(fresh_views, min_size=1, max_size=3), st.sampled_from(["cost", "load", "turn"]), st.integers(0, 3))
def test_those_that_are_next_are_chosen_without_those_before(views: list[CandidateView], order: str, more: int) -> None:
    own, asked = table(*views), ASKED | {"order": order, "tokens": 640, "needed_blocks": 40}
    keys, index = pack_keys(KEYS), cachefleet_native.Index()
    choice = own.choose(index, keys, **asked, more=more)
    assert choice is not None
    assert choice.reason not in NOWHERE or not choice.next
    before = ["abc"[choice.first]]
    for place, number in enumerate(choice.next):
        alone, following = own.choose(index, keys, **asked, excluded=before), choice.at(place)
        assert alone is not None
        assert (following.first, following.seconds) == (number, alone.seconds)
        assert (alone.first, alone.expected_tokens) == (number, following.expected_tokens)
        before.append("abc"[number])
    rest = own.choose(index, keys, **asked, excluded=before)
    assert choice.reason in NOWHERE or rest is None or rest.reason in NOWHERE or len(choice.next) == more
    with pytest.raises(IndexError, match="place"):
        choice.at(len(choice.next))


def test_those_that_are_next_are_other_workers_of_the_same_pool() -> None:
    plane = cachefleet_native.Plane()
    named = [("a#0", "a", 0), ("a#1", "a", 0), ("b#0", "b", 1), ("c#0", "c", 0), ("c#1", "c", 0), ("d#0", "d", 0)]
    rows = [plane.row() for _ in named]
    for row in rows:
        cachefleet_native.pure.hold(row, CandidateView(reported_at=0.0))
    workers = cachefleet_native.WorkerTable(plane, [(row, *names) for row, names in zip(rows, named, strict=True)])
    choice = workers.choose(cachefleet_native.Index(), b"", **ASKED, excluded=["a#0"], more=5)
    assert choice is not None
    assert [named[number][0] for number in (choice.first, *choice.next)] == ["a#1", "c#0", "d#0"]


def test_numbers_that_none_can_be_are_bounded() -> None:
    view = CandidateView(queued_tokens=1 << 70, inflight_tokens=-3, blocks_total=1 << 63, requests=1 << 64)
    choice = table(view).choose(cachefleet_native.Index(), b"", **ASKED)
    assert choice is not None
    [(_, numbers)] = choice.leading()
    assert [numbers[name] for name in ("queued_tokens", "inflight_tokens", "total_blocks", "requests")] == [
        1 << 48,
        0,
        1 << 48,
        1 << 48,
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": 1 << 50}, "tokens: too many"),
        ({"block_size": 1 << 50}, "tokens: too many"),
        ({"paid": float("nan")}, "paid: must be finite and at least 0"),
        ({"paid": -1.0}, "paid: must be finite and at least 0"),
        ({"order": "price"}, "order: one of cost, load, turn"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        table(CandidateView()).choose(cachefleet_native.Index(), b"", **ASKED | changes)


def test_candidates_that_cannot_be_are_refused() -> None:
    plane, other = cachefleet_native.Plane(), cachefleet_native.Plane()
    with pytest.raises(ValueError, match="workers: pools are counted from 0"):
        cachefleet_native.WorkerTable(plane, [(plane.row(), "a", "a", 1)])
    with pytest.raises(ValueError, match="rows: of another plane"):
        cachefleet_native.WorkerTable(plane, [(other.row(), "a", "a", 0)])
    with pytest.raises(TypeError):
        cachefleet_native.pure.hold(plane.row(), CandidateView(requests="many"))  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        cachefleet_native.pure.hold(plane.row(), object())
