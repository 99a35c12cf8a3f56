from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_operator.kube.drift import DIGEST, holds, stamped

leaves = st.booleans() | st.integers(1, 9) | st.sampled_from(["a", "1", "1Gi"])
json = st.recursive(
    leaves,
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3) | st.lists(inner, max_size=3),
)
objects = st.dictionaries(st.sampled_from("abc"), json, max_size=3)


@pytest.mark.parametrize(
    ("desired", "live"),
    [
        ({"a": 1}, {"a": 1, "added": 2}),
        ("1024Mi", "1Gi"),
        ("1000m", "1"),
        ("0.0001", "100u"),
        ("1e3", "1k"),
        ("1E3", 1000),
        ("1E", "1e18"),
        (1, "1"),
        ("1.5", "1500m"),
        ("5e3", "5e3"),
        ({"emptyDir": {}}, {}),
        ({"value": ""}, {}),
        ({"hostNetwork": False}, {}),
        ([{"name": "b", "value": "1"}], [{"name": "a"}, {"name": "b", "value": "1"}]),
        ([{"mountPath": "/x", "name": "v"}], [{"mountPath": "/y", "name": "w"}, {"mountPath": "/x", "name": "v"}]),
    ],
)
def test_is_no_difference(desired: Any, live: Any) -> None:
    assert holds(desired, live)


@pytest.mark.parametrize(
    ("desired", "live"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {}),
        ({"a": True}, {"a": 1}),
        ({"a": True}, {"a": False}),
        ("1024Mi", "1G"),
        ("engine", "other"),
        (["a", "b"], ["b", "a"]),
        (["a"], ["a", "b"]),
        ([], ["a"]),
        ([{"name": "a", "value": "1"}], [{"name": "a", "value": "x"}]),
        ([{"name": "a"}], []),
        ({"a": {"b": 1}}, {"a": "text"}),
        ({"a": ["x"]}, {"a": "x"}),
        ([{"name": {"no": "name"}}], [{"name": "a"}]),
    ],
)
def test_is_a_difference(desired: Any, live: Any) -> None:
    assert not holds(desired, live)


@given(objects)
def test_everything_holds_in_itself(value: dict[str, Any]) -> None:
    assert holds(value, value)


@given(objects, st.dictionaries(st.sampled_from("xyz"), json, max_size=2))
def test_what_others_add_is_theirs(value: dict[str, Any], added: dict[str, Any]) -> None:
    assert holds(value, {**value, **added})


@given(st.dictionaries(st.sampled_from("abc"), st.integers(1, 9) | st.just("a"), min_size=1), st.sampled_from("abc"))
def test_a_removed_field_is_seen(value: dict[str, Any], name: str) -> None:
    live = {key: each for key, each in value.items() if key != name}
    assert holds({"deep": [value]}, {"deep": [live]}) == (name not in value)


def test_the_stamp_changes_with_every_field() -> None:
    first = stamped({"metadata": {"name": "a"}, "spec": {"x": 1, "y": 2}})
    second = stamped({"metadata": {"name": "a"}, "spec": {"x": 1}})
    assert first["metadata"]["annotations"][DIGEST] != second["metadata"]["annotations"][DIGEST]
    assert stamped({"spec": {"y": 2, "x": 1}, "metadata": {"name": "a"}}) == first
