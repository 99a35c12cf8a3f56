"""Lists of pools, workers and decisions: what is asked for, and what is said where there is nothing."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.local.cli.admin_api import AdminApi, environment, ran
from tests.local.cli.test_listing import DECISION, item


@pytest.fixture
def api() -> AdminApi:
    api = AdminApi()
    for path in ("pools", "workers", "decisions"):
        api.items(path)
    return api


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pools",), "no pools: kubectl apply -f POOL.yaml"),
        (("workers",), "no workers: "),
        (("workers", "--pool", "a/b"), "no workers of a/b"),
        (("decisions",), "no decisions: "),
        (("decisions", "--tenant", "acme"), "no decisions with tenant as asked"),
    ],
)
def test_an_empty_list_says_so_and_what_to_do(api: AdminApi, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    with api.serving():
        env = environment(api, tmp_path)
        status, out, err = ran(*words, env=env)
        assert ran(*words, "-o", "json", env=env) == (0, "[]\n", "")
    assert (status, out) == (0, "")
    assert err.startswith(said)


def test_decisions_are_searched_by_what_is_given(api: AdminApi, tmp_path: Path) -> None:
    words = ("--tenant", "acme", "--pool", "a/b", "--worker", "w", "--request-id", "r", "--outcome", "failed")
    more = ("--shortfall", "any", "--since", "2027-01-31", "--until", "2027-01-31T12:00:00+01:00", "--limit", "5")
    with api.serving():
        ran("decisions", *words, *more, env=environment(api, tmp_path))
    assert {name: value for name, [value] in parse_qs(urlsplit(api.asked[0]).query).items()} == {
        "tenant": "acme",
        "pool": "a/b",
        "worker": "w",
        "requestId": "r",
        "outcome": "failed",
        "shortfall": "any",
        "since": "2027-01-31T00:00:00+00:00",
        "until": "2027-01-31T12:00:00+01:00",
        "limit": "5",
    }


def test_a_decision_is_explained_by_the_id_of_its_request(api: AdminApi, tmp_path: Path) -> None:
    with api.serving():
        env = environment(api, tmp_path)
        assert "no decision for a request r1 is known" in ran("explain", "--request-id", "r1", env=env)[2]
        api.items("decisions", item(DECISION))
        api.answers["decisions/d1"] = item(DECISION)
        status, out, _ = ran("explain", "--request-id", "r1", "-o", "name", env=env)
    assert (status, out) == (0, "d1\n")
    assert "/admin/v1/decisions?requestId=r1&limit=1" in api.asked
