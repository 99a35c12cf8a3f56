"""Whose a model name is, whatever is declared, in whatever order it is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.pool.model_names import (
    Claim,
    ModelNames,
    NameConflict,
    claim_in,
    claim_of,
    claim_status,
    parse_rules,
    rivals,
)
from cachefleet_core.pool.spec import read_pool

EARLY, LATE = "2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z"
SPACES, MODELS = ["a", "b", "c"], ["m", "n", "a/m", "b/a/m"]
times = st.sampled_from(["", EARLY, LATE])


def claim(pool: str, model: str = "m", **more: Any) -> Claim:
    return Claim(pool.partition("/")[0], model, pool, **more)


claims = st.lists(
    st.builds(
        lambda space, name, model, first, created, place: Claim(
            space, model, f"{space}/{name}", first_ready=first, created=created, place=place
        ),
        st.sampled_from(SPACES),
        st.sampled_from(["x", "y", "z"]),
        st.sampled_from(MODELS),
        times,
        times,
        st.integers(0, 3),
    ),
    max_size=8,
    unique_by=lambda one: one.pool,
)
rules = st.dictionaries(
    st.sampled_from([*MODELS, "*"]), st.lists(st.sampled_from(SPACES), unique=True).map(tuple), max_size=3
)


def test_a_name_belongs_to_who_had_a_ready_worker_first_however_old_another_is() -> None:
    older = claim("a/x", created=EARLY, first_ready=LATE)
    served = claim("b/x", created=LATE, first_ready=EARLY)
    for never in (claim("a/x", created=EARLY), older):
        names = ModelNames([never, served])
        assert names.resolve("m") == ("b", "m")
        assert names.conflict("a", "m") == NameConflict("b/x")
        assert names.conflict("b", "m") is None
        assert (names.shown("a", "m"), names.shown("b", "m")) == ("a/m", "m")
        assert names.resolve("a/m") == ("a", "m")


def test_among_pools_that_never_served_the_oldest_has_it_and_in_a_file_the_first() -> None:
    assert ModelNames([claim("a/x", created=LATE), claim("b/x", created=EARLY)]).resolve("m") == ("b", "m")
    assert ModelNames([claim("a/x", place=1), claim("b/x", place=0)]).resolve("m") == ("b", "m")
    assert ModelNames([claim("b/x"), claim("a/x")]).resolve("m") == ("a", "m")


def test_pools_of_one_namespace_have_a_name_together() -> None:
    names = ModelNames([claim("a/x", first_ready=LATE), claim("a/y"), claim("b/x", first_ready=EARLY), claim("b/y")])
    assert names.conflict("b", "m") is None
    assert names.conflict("a", "m") == NameConflict("b/x")


def test_a_name_that_another_is_qualified_by_is_of_the_older() -> None:
    """A pool "m" of namespace a, and one that serves "a/m" in another."""
    early, late = {"first_ready": EARLY}, {"first_ready": LATE}
    ours, theirs = claim("a/x", **early), claim("b/x", "a/m", **late)
    names = ModelNames([theirs, ours])
    assert names.resolve("a/m") == ("a", "m")
    assert names.conflict("b", "a/m") == NameConflict("a/x")
    assert (names.shown("b", "a/m"), names.resolve("b/a/m")) == ("b/a/m", ("b", "a/m"))
    assert ModelNames([theirs]).resolve("a/m") == ("b", "a/m"), "with no such namespace it is a name like others"

    served, newcomer = claim("b/x", "a/m", **early), claim("a/x", **late)
    names = ModelNames([newcomer, served])
    assert (names.resolve("a/m"), names.conflict("b", "a/m")) == (("b", "a/m"), None)
    assert (names.resolve("m"), names.conflict("a", "m")) == (("a", "m"), None)


def test_a_rule_for_such_a_name_holds_whatever_the_age() -> None:
    ours, theirs = claim("a/x", first_ready=EARLY), claim("b/x", "a/m", first_ready=LATE)
    ruled = ModelNames([ours, theirs], {"a/m": ("b",)})
    assert (ruled.resolve("a/m"), ruled.conflict("b", "a/m")) == (("b", "a/m"), None)
    assert ModelNames([ours], {"a/m": ("b",)}).resolve("a/m") is None, "also while the namespace has no pool of it"
    assert ModelNames([ours, theirs], {"a/m": ("a",)}).resolve("a/m") == ("a", "m")
    assert ModelNames([ours, theirs], {"a/m": ("a",)}).conflict("b", "a/m") == NameConflict("a/x")
    assert ModelNames([ours], {"*": ("b",)}).resolve("a/m") == ("a", "m"), "one for all others is none for qualified"


def test_a_model_of_which_both_names_are_anothers_is_not_asked_for() -> None:
    found = [claim("a/x"), claim("b/x", first_ready=EARLY), claim("c/x", "a/m", first_ready=EARLY)]
    names = ModelNames(found)
    assert names.conflict("a", "m") == NameConflict("b/x", nameless=True)


def test_rules_say_who_may_have_a_name_at_all() -> None:
    first, second = claim("a/x", first_ready=EARLY), claim("b/x", first_ready=LATE)
    assert ModelNames([first, second], {"m": ("b",)}).resolve("m") == ("b", "m")
    assert ModelNames([first, second], {"*": ("b",)}).resolve("m") == ("b", "m")
    assert ModelNames([first, second], {"*": ("b",), "m": ("a", "b")}).resolve("m") == ("a", "m")
    nobody = ModelNames([first], {"m": ("b",)})
    assert (nobody.resolve("m"), nobody.conflict("a", "m"), nobody.resolve("a/m")) == (None, NameConflict(), ("a", "m"))


@given(claims, rules, st.randoms())
def test_every_model_is_asked_for_by_one_shown_name_or_both_are_anothers_in_whatever_order_pools_are_seen(
    found: list[Claim], allowed: dict[str, tuple[str, ...]], chance: Any
) -> None:
    names = ModelNames(found, allowed)
    fleets = {(one.namespace, one.model) for one in found}
    shown = {fleet: names.shown(*fleet) for fleet in fleets}
    asked = {fleet: name for fleet, name in shown.items() if names.resolve(name) == fleet}
    assert len(set(asked.values())) == len(asked)
    for namespace, model in fleets - asked.keys():
        for name in (model, f"{namespace}/{model}"):
            assert names.resolve(name) != (namespace, model)
        conflict = names.conflict(namespace, model)
        assert conflict is not None
        assert conflict.nameless
    chance.shuffle(found)
    again = ModelNames(found, allowed)
    assert {fleet: again.shown(*fleet) for fleet in fleets} == shown


@given(claims, st.sampled_from(SPACES), st.sampled_from(MODELS))
def test_who_comes_later_takes_nothing_from_who_has_served(found: list[Claim], space: str, model: str) -> None:
    names = ModelNames(found)
    served = [one for one in found if one.first_ready]
    had = {name: names.resolve(name) for one in served for name in (one.model, f"{one.namespace}/{one.model}")}
    late = Claim(space, model, f"{space}/new", first_ready="2027-01-03T00:00:00Z", created=EARLY)
    after = ModelNames([*found, late])
    assert {name: after.resolve(name) for name in had} == had


@given(claims)
def test_only_rivals_bear_on_a_pools_name(found: list[Claim]) -> None:
    names = ModelNames(found)
    for one in found:
        near = ModelNames([other for other in found if rivals(one, other)])
        assert near.conflict(one.namespace, one.model) == names.conflict(one.namespace, one.model)


def test_a_pools_claim_is_read_from_its_metadata_and_status() -> None:
    document = {
        "apiVersion": "cachefleet.io/v1alpha1",
        "kind": "PrefixCachePool",
        "metadata": {"name": "x", "namespace": "a", "creationTimestamp": EARLY},
        "spec": {
            "model": {"name": "m", "source": "s", "weightsMiB": 1},
            "engine": {"maxModelLen": 64},
            "device": {"resource": "nvidia.com/gpu", "memoryMiB": 8192, "activationMiB": 100, "floorMiB": 100},
        },
    }
    fresh = claim_of(read_pool(document), 3)
    assert fresh == claim("a/x", created=EARLY, place=3)
    given = {"status": {"firstReadyTime": LATE, "conditions": "of another version"}}
    served = claim_of(read_pool(document | {"status": claim_status(given)}))
    assert served == replace(fresh, first_ready=LATE, place=0)
    unreadable = {"model": {"name": "m", "weightsMiB": "many"}, "engine": 5}
    assert claim_in(document | given) == claim_in(document | given | {"spec": unreadable}) == served


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"metadata": 5, "spec": []},
        {"metadata": {"name": "x"}, "spec": {"model": {"name": "m"}}},
        {"metadata": {"name": "x", "namespace": "a"}, "spec": {"model": {"name": 5}}},
        {"metadata": {"name": "x", "namespace": "a"}, "spec": {"model": None}},
        {"metadata": {"name": "x", "namespace": "a"}, "spec": {"model": {"name": "a b"}}},
    ],
)
def test_a_document_without_a_name_claims_none(document: dict[str, Any]) -> None:
    assert claim_in(document) is None


@pytest.mark.parametrize(
    "document", [{}, {"status": None}, {"status": []}, *({"status": {"firstReadyTime": x}} for x in (None, 5, "soon"))]
)
def test_a_status_that_cannot_be_read_is_none(document: dict[str, Any]) -> None:
    assert claim_status(document) == {}


def test_rules_are_read_from_json() -> None:
    assert parse_rules("") == {}
    assert parse_rules('{"qwen": ["a", "b"], "*": []}') == {"qwen": ("a", "b"), "*": ()}


@pytest.mark.parametrize("text", ["{", "[]", "5", '{"m": "a"}', '{"m": ["A"]}', '{"m": [1]}', '{"m": null}'])
def test_rules_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not JSON|must be a mapping"):
        parse_rules(text)
