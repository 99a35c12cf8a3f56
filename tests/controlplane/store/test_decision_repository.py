"""What every DecisionRepository does."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cachefleet_controlplane.store.decision_filter import ANY, DecisionFilter, RequestOutcome
from cachefleet_controlplane.store.decision_records import EndedBy, ShortfallRecord
from cachefleet_controlplane.store.decision_repository import DecisionRepository
from tests.controlplane.store.conftest import RING, MakeRecord, make_record


def test_gives_back_what_was_saved(repository: DecisionRepository, make: MakeRecord) -> None:
    record = make(1, cached=48)
    repository.save([record, make(2)])
    assert repository.get("d1") == record
    assert repository.get("d3") is None


def test_recent_has_the_last_saved_first_within_the_limit(repository: DecisionRepository, make: MakeRecord) -> None:
    repository.save([make(1), make(2)])
    repository.save([make(3)])
    assert [r.id for r in repository.recent(2)] == ["d3", "d2"]
    assert repository.recent(0) == []


def test_recent_filters_by_model(repository: DecisionRepository, make: MakeRecord) -> None:
    repository.save([make(1, model="a"), make(2, model="b"), make(3, model="a")])
    assert [r.id for r in repository.recent(9, DecisionFilter(model="a"))] == ["d3", "d1"]
    assert repository.recent(9, DecisionFilter(model="nobody's")) == []


def test_pages_go_on_before_the_last_one_seen(repository: DecisionRepository, make: MakeRecord) -> None:
    repository.save([make(number) for number in range(7)])
    pages, before = [], None
    while page := [r.id for r in repository.recent(3, before=before)]:
        pages.append(page)
        before = page[-1]
    assert pages == [["d6", "d5", "d4"], ["d3", "d2", "d1"], ["d0"]]
    assert repository.recent(3, before="pruned") == []


def test_each_outcome_is_of_one_end(make: MakeRecord) -> None:
    ends = {
        (200, None): "answered",
        (200, EndedBy.CLIENT): "gone",
        (499, EndedBy.CLIENT): "gone",
        (499, None): "gone",
        (200, EndedBy.GATEWAY): "stopped",
        (200, EndedBy.WORKER): "broken",
        (429, None): "refused",
        (502, EndedBy.WORKER): "failed",
    }
    for (status, by), outcome in ends.items():
        record = replace(make(1), status=status, ended_by=by)
        assert [each for each in RequestOutcome if DecisionFilter(outcome=each).matches(record)] == [outcome]


VALUES = {
    "model": ("demo", "other"),
    "request_id": (None, "r1", "r2"),
    "tenant": ("", "acme"),
    "pool": ("default/demo", "b/demo"),
    "worker": ("demo-0", "demo-1", ""),
    "status": (0, 200, 400, 404, 429, 499, 500, 503),
    "ended_by": (None, *EndedBy),
    "at": (1.0, 2.0, 3.0),
    "shortfall": (None, ShortfallRecord("evicted", 4, "demo-0"), ShortfallRecord("stale", 4, "demo-0")),
}
ASKED = {
    **{name: VALUES[name] for name in ("model", "tenant", "pool")},
    "request_id": ("r1", "r3"),
    "worker": ("demo-0", "b/demo/demo-0", "demo"),
    "outcome": tuple(RequestOutcome),
    "shortfall": (ANY, "evicted", "moved"),
    "since": (1.0, 2.5),
    "until": (2.0, 3.5),
}


@given(
    records=st.lists(
        st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()}),
        min_size=1,
        max_size=RING,
    ),
    asked=st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in ASKED.items()}),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_filter_means_the_same_in_memory_and_stored(
    repository: DecisionRepository, records: list[dict[str, Any]], asked: dict[str, Any]
) -> None:
    made = [replace(make_record(number), **fields) for number, fields in enumerate(records)]
    while repository.prune():
        pass
    repository.save([make_record(number) for number in range(RING)])  # in the place of those of the last example
    repository.save(made)
    wanted = DecisionFilter(**asked)
    names = {record.id for record in made}
    found = [record for record in repository.recent(2 * RING, wanted) if record.id in names]
    assert found == [record for record in reversed(made) if wanted.matches(record)]


def test_saving_an_id_again_replaces_it_and_makes_it_recent(repository: DecisionRepository, make: MakeRecord) -> None:
    repository.save([make(1), make(2)])
    repository.save([make(1, cached=32)])
    assert [(r.id, r.cached_tokens) for r in repository.recent(9)] == [("d1", 32), ("d2", None)]


def test_pruning_keeps_the_newest_of_the_ring(repository: DecisionRepository, make: MakeRecord) -> None:
    for number in range(RING + 5):
        repository.save([make(number)])
    removed = 0
    while count := repository.prune():
        removed += count
    assert removed == 5
    assert [r.id for r in repository.recent(99)] == [f"d{n}" for n in range(RING + 4, 4, -1)]
    assert repository.prune() == 0


def test_an_empty_ring_prunes_nothing(repository: DecisionRepository) -> None:
    assert repository.prune() == 0
    assert repository.recent(5) == []


def test_opening_again_keeps_everything(repository: DecisionRepository, make: MakeRecord) -> None:
    repository.save([make(1)])
    repository.open()
    assert repository.get("d1") is not None
