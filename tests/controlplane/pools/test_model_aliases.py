"""Which models an alias means, whatever pools declare, in whatever order."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.pools.model_aliases import MAX_NAME, ModelAliases, matches
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.status import PoolStatus
from tests.controlplane.fleets import pool


def aliased(key: str, *aliases: str, model: str = "m", weight: int = 100, first_ready: str = "") -> PrefixCachePool:
    namespace, _, name = key.partition("/")
    spec: dict[str, Any] = {"name": model, "source": "tiny", "weightsMiB": 1, "aliases": list(aliases)}
    declared = pool(name, namespace=namespace, model=spec | {"aliasWeight": weight})
    return declared.model_copy(update={"status": PoolStatus(first_ready_time=first_ready or None)})


def aliases(*pools: PrefixCachePool, rules: dict[str, tuple[str, ...]] | None = None) -> ModelAliases:
    return ModelAliases(((one, place) for place, one in enumerate(pools)), rules)


def means(found: ModelAliases, asked: str) -> list[tuple[str, str, int]]:
    return [(share.namespace, share.model, share.weight) for share in found.of(asked)]


def test_a_name_goes_before_patterns_and_the_longer_pattern_before_the_shorter() -> None:
    found = aliases(
        aliased("a/x", "*", model="all"),
        aliased("a/y", "claude-*", model="claude"),
        aliased("a/z", "claude-*-4", "gpt-4o-mini", model="four"),
        aliased("a/w", "claude-opus-4", model="opus"),
    )
    asked = {"claude-opus-4": "opus", "claude-x-4": "four", "claude-x": "claude", "gpt-4o-mini": "four", "x": "all"}
    assert {name: means(found, name)[0][1] for name in asked} == asked
    assert (found.shown(), found.shown(patterns=True)[0]) == (["claude-opus-4", "gpt-4o-mini"], "*")


def test_models_of_a_namespace_share_an_alias_by_the_largest_weight_of_their_pools() -> None:
    found = aliases(
        aliased("a/x", "qwen", model="new", weight=10),
        aliased("a/y", "qwen", model="old", weight=70),
        aliased("a/z", "qwen", model="old", weight=90),
        aliased("a/off", "qwen", "unused", model="off", weight=0),
    )
    assert means(found, "qwen") == [("a", "new", 10), ("a", "old", 90)]
    assert means(found, "unused") == []


def test_an_alias_is_of_the_namespace_that_served_first_and_of_others_by_their_names() -> None:
    ours, theirs = aliased("a/x", "gpt", "o*"), aliased("b/x", "gpt", "o*", first_ready="2027-01-01T00:00:00Z")
    found = aliases(ours, theirs)
    for asked in ("gpt", "o1", "b/gpt", "b/o1"):
        assert means(found, asked)[0][0] == "b", asked
    assert [means(found, asked)[0][0] for asked in ("a/gpt", "a/o1")] == ["a", "a"]
    assert (found.means("gpt", ours), found.means("a/gpt", ours), found.owner("gpt")) == (False, True, "b/x")
    assert found.shown() == ["a/gpt", "gpt"]


def test_rules_hold_for_aliases_too() -> None:
    ours, theirs = aliased("a/x", "gpt"), aliased("b/x", "gpt")
    assert means(aliases(ours, theirs, rules={"gpt": ("b",)}), "gpt")[0][0] == "b"
    assert means(aliases(ours, rules={"gpt": ("b",)}), "gpt") == []


def test_what_nothing_matches_and_a_name_of_any_length_mean_nothing() -> None:
    found = aliases(aliased("a/x", "*", "claude-*"))
    assert means(found, "x" * MAX_NAME)
    assert means(found, "x" * (MAX_NAME + 1)) == []
    assert means(aliases(aliased("a/x", "claude-*")), "claude") == []
    assert means(aliases(), "claude-x") == []


@pytest.mark.parametrize(
    ("pattern", "name", "whole"),
    [
        ("claude-*", "claude-", True),
        ("*-mini", "gpt-4o-mini", True),
        ("*-mini", "gpt-4o-mini-2", False),
        ("a*b*c", "aXbYc", True),
        ("a*b*c", "acb", False),
        ("a*a", "a", False),
        ("**", "", True),
        ("a", "ab", False),
    ],
)
def test_a_star_is_any_characters(pattern: str, name: str, *, whole: bool) -> None:
    assert matches(pattern, name) is whole


@given(st.text("ab*", max_size=8), st.text("ab", max_size=12))
def test_a_pattern_matches_what_a_regular_expression_does(pattern: str, name: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert matches(pattern, name) == (re.fullmatch(expression, name) is not None)
