from __future__ import annotations

import json

import pytest

from cachefleet_worker.adapter_weights import AdapterError, with_fetched


def module(name: str, path: str) -> str:
    return json.dumps({"name": name, "path": path})


def fetch(source: str, revision: str) -> str:
    if revision == "gone":
        raise OSError("no such revision")
    return f"/cache/{source}/snapshots/{revision}"


def test_hub_ids_at_a_revision_become_the_folder_that_was_fetched() -> None:
    modules = [module("a", "org/a@v1"), module("b", "/w/b@1")]
    given = ["--port", "1", "--lora-modules", *modules, "--x", module("c", "o/c@1")]
    made = with_fetched(given, fetch)
    assert made[3] == module("a", "/cache/org/a/snapshots/v1")
    assert [word for word in made if word != made[3]] == [word for word in given if word != given[3]]


@pytest.mark.parametrize(
    "word", ["a=/w", "{", "{}", "[]", module("a", "org/a"), module("a", "~/a@b"), module("a", "./a@b")]
)
def test_everything_else_is_left_to_vllm(word: str) -> None:
    assert with_fetched(["--lora-modules", word], fetch) == ["--lora-modules", word]
    assert with_fetched([word], fetch) == [word]


def test_what_cannot_be_fetched_is_named() -> None:
    with pytest.raises(AdapterError, match="adapter a: org/a at gone cannot be fetched: no such revision"):
        with_fetched(["--lora-modules", module("a", "org/a@gone")], fetch)
