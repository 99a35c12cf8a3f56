"""What every DecisionRepository does."""

from cachefleet_controlplane.store.decision_repository import DecisionRepository
from tests.controlplane.store.conftest import RING, MakeRecord


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
    assert [r.id for r in repository.recent(9, "a")] == ["d3", "d1"]
    assert repository.recent(9, "nobody's") == []


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
