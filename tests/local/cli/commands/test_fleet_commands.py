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


@pytest.mark.parametrize("command", ["workers", "decisions"])
def test_a_pool_without_its_namespace_is_bad_input(api: AdminApi, tmp_path: Path, command: str) -> None:
    status, _, err = ran(command, "--pool", "a", env=environment(api, tmp_path))
    assert (status, "got 'a', allowed: NAMESPACE/NAME" in " ".join(err.split())) == (2, True)
    assert not api.asked


def test_a_decision_is_explained_by_the_id_of_its_request(api: AdminApi, tmp_path: Path) -> None:
    with api.serving():
        env = environment(api, tmp_path)
        assert "no decision for a request r1 is known" in ran("explain", "--request-id", "r1", env=env)[2]
        api.items("decisions", item(DECISION))
        api.answers["decisions/d1"] = item(DECISION)
        status, out, _ = ran("explain", "--request-id", "r1", "-o", "name", env=env)
    assert (status, out) == (0, "d1\n")
    assert "/admin/v1/decisions?requestId=r1&limit=1" in api.asked


WORKER_NAMES = [(pool, name, f"{pool}/{name}#0") for pool in ("a/p", "b/p") for name in ("p-0", "p-1")]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("workers", "p-1"), ["a/p/p-1#0", "b/p/p-1#0"]),
        (("workers", "b/p/p-0#0"), ["b/p/p-0#0"]),
        (("workers", "p-0", "--pool", "a/p"), ["a/p/p-0#0", "b/p/p-0#0"]),
        (("pools", "p"), ["a/p", "b/p"]),
        (("pools", "b/p"), ["b/p"]),
    ],
)
def test_what_is_named_is_shown_alone(api: AdminApi, tmp_path: Path, words: tuple[str, ...], shown: list[str]) -> None:
    api.items("workers", *({"pool": pool, "name": name, "id": ident} for pool, name, ident in WORKER_NAMES))
    api.items("pools", *({"key": key, "name": "p"} for key in ("a/p", "b/p")), {"key": "b/q", "name": "q"})
    with api.serving():
        status, out, err = ran(*words, "-o", "name", env=environment(api, tmp_path))
    assert (status, out.split(), err) == (0, shown, "")


@pytest.mark.parametrize(("kind", "known"), [("worker", "p-0, p-1"), ("pool", "a/p")])
def test_a_name_that_nobody_has_is_a_failure_that_says_which_there_are(
    api: AdminApi, tmp_path: Path, kind: str, known: str
) -> None:
    api.items("workers", *({"pool": pool, "name": name, "id": ident} for pool, name, ident in WORKER_NAMES))
    api.items("pools", {"key": "a/p", "name": "p"})
    with api.serving():
        status, out, err = ran(f"{kind}s", "nobody", env=environment(api, tmp_path))
    assert (status, out, err) == (1, "", f"no {kind} is named nobody; there are: {known}\n")
