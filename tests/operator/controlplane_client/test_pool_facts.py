import dataclasses
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.fleet_status.cache_worth import cache_values
from cachefleet_core.fleet_status.pool_facts import PoolDetail
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.warmth import WarmProblem, Warmth
from cachefleet_operator.controlplane_client.pool_facts import (
    Facts,
    FactsError,
    block_bytes,
    essence,
    excluded,
    failed,
    figures,
    parse,
    unwarmed,
)
from tests.controlplane.fleet_views import worker_status

MEMBER: dict[str, Any] = {
    "name": "demo-a",
    "rank": 0,
    "phase": "ready",
    "ready": True,
    "stream": "live",
    "stale": False,
    "indexed": True,
    "epoch": "e1",
    "warmth": {"done": 2, "total": 2, "failed": []},
    "heldBlocks": 40,
    "blockBytes": 1024,
    "cacheValue": 1.5,
    "excluded": False,
    "differences": [],
    "load": {"blocksIdle": 30, "running": 1},
}
POOL: dict[str, Any] = {
    "key": "serving/demo",
    "contract": {"fingerprint": "sha256:x", "blockSize": 16, "tokenizer": "t", "weights": "w", "keyVersion": 1},
    "hitRatio": {"value": 0.5, "windowSeconds": 600, "objective": 0.6, "queriedTokens": 10, "hitTokens": 5},
    "workers": {"total": 1, "ready": 1, "fresh": 1, "excluded": 0},
    "members": [MEMBER],
}


def read(**changes: Any) -> PoolDetail:
    return parse(json.dumps(POOL | changes).encode())


def facts(*members: dict[str, Any], **changes: Any) -> Facts:
    return Facts(read(members=list(members), **changes))


def test_reads_what_the_control_plane_says() -> None:
    found = read(members=[MEMBER, MEMBER | {"rank": 1, "cacheValue": 2.0}])
    assert found.contract is not None
    assert (found.contract.fingerprint, found.contract.block_size) == ("sha256:x", 16)
    assert (found.hit_ratio.value, found.members[0].fresh) == (0.5, True)
    assert cache_values(found.members) == {"demo-a": 3.5}
    assert (block_bytes(found), found.members[0].idle_bytes, found.members[0].warmed) == (1024, 30 * 1024, True)


def test_why_a_prefix_is_not_warm_comes_from_the_agent_to_the_operator_whole() -> None:
    problem = WarmProblem(name="p", kind="too_long", tokens=9, limit=8, attempts=1, detail="engine.x")
    status = worker_status("demo-a", warmth=Warmth(total=1, problems=(problem,)))
    assert unwarmed(facts(msgspec.to_builtins(status))) == ("demo-a", problem)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b'{"key": "a/b", "members": [{}]}', b'{"key": "a/b", "members": "x"}', b'{"hitRatio": 1}'],
)
def test_anything_else_is_an_error(body: bytes) -> None:
    with pytest.raises(FactsError):
        parse(body)


@given(st.binary(max_size=64))
def test_no_bytes_do_worse(body: bytes) -> None:
    try:
        parse(body)
    except FactsError as error:
        assert len(str(error)) <= 256  # noqa: PT017  # the error is one of two allowed ends


@pytest.mark.parametrize(
    "change",
    [{"heldBlocks": 41}, {"cacheValue": 9.0}, {"load": {"blocksIdle": 1}}, {"load": None}],
)
def test_figures_are_not_its_essence(change: dict[str, Any]) -> None:
    assert essence(facts(MEMBER | change)) == essence(facts(MEMBER))
    assert figures(facts(MEMBER | change)) != figures(facts(MEMBER))


@pytest.mark.parametrize(
    "change",
    [{"reportAgeSeconds": 0.1}, {"sequence": 9}, {"inflightRequests": 4}, {"load": {"blocksIdle": 30, "running": 9}}],
)
def test_what_no_status_shows_is_no_figure_of_it(change: dict[str, Any]) -> None:
    """Else each pool of a busy fleet would be reconciled for it."""
    assert facts(MEMBER | change) != facts(MEMBER)
    assert figures(facts(MEMBER | change)) == figures(facts(MEMBER))
    later = POOL["hitRatio"] | {"sampledAt": "2027-01-15T08:00:00Z"}
    assert figures(facts(MEMBER, hitRatio=later)) == figures(facts(MEMBER))


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": "e2"},
        {"phase": "draining"},
        {"warmth": {"done": 1, "total": 2}},
        {"warmth": {"done": 2, "total": 2, "problems": [{"name": "p", "kind": "too_long"}]}},
        {"differences": [{"field": "f", "expected": "a", "actual": "b"}]},
        {"name": "demo-b"},
        {"ready": False},
        {"stale": True},
        {"stream": "adrift"},
        {"indexed": False},
    ],
)
def test_the_lives_of_workers_are(change: dict[str, Any]) -> None:
    assert essence(facts(MEMBER | change)) != essence(facts(MEMBER))


def test_so_is_whether_anything_is_known() -> None:
    assert essence(Facts()) != essence(facts(MEMBER))
    assert essence(facts(MEMBER, hitRatio={"value": None})) != essence(facts(MEMBER))
    assert essence(facts(MEMBER, hitRatio={"value": 0.51})) == essence(facts(MEMBER))
    assert essence(dataclasses.replace(Facts(), message="x")) == essence(Facts())


def test_finds_who_failed_and_who_is_a_stranger() -> None:
    stranger = MEMBER | {"excluded": True, "differences": [{"field": "f", "expected": "a", "actual": "b"}]}
    assert failed(facts(MEMBER, MEMBER | {"name": "x", "phase": "failed"})).name == "x"  # type: ignore[union-attr]
    assert excluded(facts(MEMBER, stranger)) is not None
    assert (failed(facts(MEMBER)), excluded(facts(MEMBER)), failed(Facts()), excluded(Facts())) == (None,) * 4


@pytest.mark.parametrize(
    "member",
    [{"phase": "x" * 65}, {"heldBlocks": 2**53 + 1}, {"heldBlocks": -1}, {"load": {"blocksIdle": -1}}],
)
def test_what_no_status_can_say_is_no_answer(member: dict[str, Any]) -> None:
    with pytest.raises(FactsError):
        read(members=[MEMBER | member])


def test_a_phase_that_is_not_known_here_is_told_as_it_is() -> None:
    assert read(members=[MEMBER | {"phase": "hibernating"}]).members[0].phase == "hibernating"


def test_a_refused_key_is_news() -> None:
    """So that its pool is looked at, and its Secret put right, at the next poll and not at the next resync."""
    taken, refused = (
        Facts(PoolDetail(key="p/q", members=(WorkerFacts(name="a", key_refused=no),))) for no in (False, True)
    )
    assert essence(taken) != essence(refused)
    body = b'{"key":"p/q","members":[{"name":"a","keyRefused":true}]}'
    assert parse(body).members == refused.pool.members if refused.pool else ()
