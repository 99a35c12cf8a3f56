"""A fleet's status between releases: JSON that is older or newer than the types that decode it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.fleet_status.pool_facts import (
    AdapterConflict,
    AliasConflict,
    ContractFacts,
    HitRatio,
    PoolDetail,
    PoolList,
    WorkerCounts,
)
from cachefleet_core.fleet_status.worker_facts import Load, WorkerFacts, WorkerList
from cachefleet_core.pool.adapter_reports import AdapterReport
from cachefleet_core.warmth import Warmth

RELEASED: Final[dict[str, Any]] = json.loads(Path(__file__).with_name("released_pool.json").read_text())
"""A pool as the release before this shape published it."""
OBJECTS: Final[dict[str, msgspec.Struct]] = {
    "": PoolDetail(key="k"),
    "members": WorkerFacts(name="n"),
    "load": Load(),
    "hitRatio": HitRatio(),
    "workers": WorkerCounts(),
    "contract": ContractFacts("f"),
    "adapterConflicts": AdapterConflict("a"),
    "aliasConflicts": AliasConflict("a"),
    "warmth": Warmth(),
    "adapters": AdapterReport(),
}
"""Objects in it by the field that holds them, with nothing but what is required; others have no field to leave out."""
REQUIRED: Final = frozenset({"key", "name", "fingerprint", "adapter", "alias"})

Path_ = tuple[str | int, ...]


def objects(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, dict[str, Any]]]:
    """All objects in JSON, by where they are, the innermost first."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield from objects(child, (*path, name))
    if isinstance(value, dict):
        yield path, value


def holder(path: Path_) -> str:
    """The field that holds an object, or the list that it is in."""
    return next((name for name in reversed(path) if isinstance(name, str)), "")


def json_of(value: msgspec.Struct) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(value))
    return decoded


def decoded(document: dict[str, Any]) -> PoolDetail:
    return msgspec.json.decode(json.dumps(document), type=PoolDetail)


OPTIONAL: Final = [
    (path, name)
    for path, value in objects(RELEASED)
    if holder(path) in OBJECTS
    for name in value
    if name not in REQUIRED
]


def at(document: Any, path: Path_) -> Any:
    for name in path:
        document = document[name]
    return document


def test_what_the_release_before_published_comes_back_as_it_was() -> None:
    """So that neither an older control plane is misread, nor a client of that release lacks a field."""
    again = json_of(decoded(RELEASED))
    for path, value in objects(RELEASED):
        shown = at(again, path)
        assert {name: shown[name] for name in value}.keys() == value.keys()
        assert all(shown[name] == value[name] for name in value if not isinstance(value[name], dict | list))


@given(st.sets(st.sampled_from(OPTIONAL), max_size=12))
def test_what_an_older_control_plane_does_not_send_has_its_default(missing: set[tuple[Path_, str]]) -> None:
    older = json.loads(json.dumps(RELEASED))
    for path, name in sorted(missing, key=lambda one: -len(one[0])):
        at(older, path).pop(name)
    read = json_of(decoded(older))
    gone = {(*path, name) for path, name in missing}
    for path, name in missing:
        if not any(path[: len(other)] == other for other in gone):
            assert at(read, path)[name] == json_of(OBJECTS[holder(path)])[name]
    for path, value in objects(older):
        plain = {name for name in value if not isinstance(value[name], dict | list)}
        assert all(at(read, path)[name] == value[name] for name in plain)


@given(
    st.sets(st.sampled_from([path for path, _ in objects(RELEASED)]), min_size=1),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9), lambda each: st.lists(each, max_size=3)
    ),
)
def test_what_a_newer_control_plane_adds_is_ignored(places: set[Path_], value: Any) -> None:
    newer = json.loads(json.dumps(RELEASED))
    for path in places:
        at(newer, path)["ofALaterRelease"] = value
    assert decoded(newer) == decoded(RELEASED)


def test_lists_are_read_alike() -> None:
    pool = {name: value for name, value in RELEASED.items() if name != "members"}
    (listed,) = msgspec.convert({"items": [pool], "more": 1}, PoolList).items
    assert json_of(listed).items() <= json_of(decoded(RELEASED)).items()
    workers = msgspec.convert({"items": RELEASED["members"], "total": 9, "next": "x"}, WorkerList)
    assert (workers.items, workers.total, workers.next) == (decoded(RELEASED).members, 9, "x")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key": None}, "Expected `str`, got `null` - at `$.key`"),
        ({"members": [{"id": "x"}]}, "missing required field `name` - at `$.members[0]`"),
        ({"members": [{"name": "a", "heldBlocks": -1}]}, "Expected `int` >= 0 - at `$.members[0].heldBlocks`"),
        ({"hitRatio": {"value": 1.5}}, "Expected `float` <= 1.0 - at `$.hitRatio.value`"),
        ({"budgetMiB": 2**53 + 1}, "Expected `int` <= 9007199254740992 - at `$.budgetMiB`"),
    ],
)
def test_what_is_none_is_refused_by_field_and_range(change: dict[str, Any], words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        decoded(RELEASED | change)
    assert words in str(refused.value)


def test_facts_that_follow_from_others() -> None:
    load = Load(blocks_idle=3, prefix_queries=10, prefix_hits=4)
    worker = WorkerFacts(name="a", stream="live", stale=False, trust=0.4, block_bytes=16, load=load)
    assert (worker.fresh, worker.doubted, worker.warmed, worker.idle_bytes, load.hit_ratio) == (
        True,
        True,
        True,
        48,
        0.4,
    )
    silent = WorkerFacts(name="b", warmth=Warmth(done=0, total=1))
    assert (silent.fresh, silent.doubted, silent.warmed, silent.idle_bytes) == (False, False, False, None)
    assert WorkerFacts(name="c", load=load).idle_bytes is None, "no block's size is told"
    assert Load().hit_ratio is None


@pytest.mark.parametrize(
    ("ratio", "missed"),
    [
        (HitRatio(0.5, objective=0.6), True),
        (HitRatio(0.6, objective=0.6), False),
        (HitRatio(0.5, objective=0.6, sampled=False), False),
        (HitRatio(None, objective=0.6), False),
        (HitRatio(0.5), False),
    ],
)
def test_an_objective_is_missed_once_enough_was_looked_up(ratio: HitRatio, *, missed: bool) -> None:
    assert ratio.missed is missed
