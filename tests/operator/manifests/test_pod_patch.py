from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_operator.manifests.pod_patch import merged

leaves = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "b"])
names = st.sampled_from(["a", "b", "env", "volumes", "containers", "name"])
values = st.recursive(leaves, lambda inner: st.dictionaries(names, inner, max_size=3) | st.lists(inner, max_size=3))
mappings = st.dictionaries(names, values, max_size=4)


@pytest.mark.parametrize(
    ("base", "patch", "expected"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        (
            {"containers": [{"name": "engine", "image": "i", "args": ["x"]}]},
            {"containers": [{"name": "engine", "image": "j"}, {"name": "extra"}]},
            {"containers": [{"name": "engine", "image": "j", "args": ["x"]}, {"name": "extra"}]},
        ),
        (
            {"volumes": [{"name": "cache", "emptyDir": {}}]},
            {"volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "w"}}]},
            {"volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "w"}}]},
        ),
        (
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "p"}}}]},
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "p"}}}]},
        ),
        ({"containers": [{"name": "engine"}]}, {"containers": "nonsense"}, {"containers": "nonsense"}),
        ({}, {"env": [{"name": "A", "value": None}]}, {"env": [{"name": "A"}]}),
    ],
)
def test_merges(base: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]) -> None:
    assert merged(base, patch) == expected


@given(mappings, mappings)
def test_patching_twice_is_patching_once_and_changes_no_argument(base: dict[str, Any], patch: dict[str, Any]) -> None:
    before = deepcopy((base, patch))
    once = merged(base, patch)
    assert merged(once, patch) == once
    assert (base, patch) == before


@given(mappings)
def test_an_empty_patch_changes_nothing(base: dict[str, Any]) -> None:
    assert merged(base, {}) == base
