"""Searching decisions, page by page, over those that wait and those that are stored."""

from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from cachefleet_controlplane.admin.decisions.decision_presenters import decision
from cachefleet_controlplane.admin.decisions.decision_routes import AT_ONCE, listed
from cachefleet_controlplane.admin.decisions.decision_schemas import DecisionList
from cachefleet_controlplane.store.decision_log import DecisionLog
from cachefleet_controlplane.store.decision_records import ShortfallRecord
from cachefleet_controlplane.store.store_errors import StoreError
from tests.controlplane.store.conftest import make_record

FOUND = replace(
    make_record(4),
    model="m",
    request_id="r 4/ü",
    tenant="t",
    status=503,
    shortfall=ShortfallRecord("stale", 4, "w"),
    pool="ns/p",
    worker="w",
)


@pytest.fixture
async def half_stored(decisions: DecisionLog) -> DecisionLog:
    """Of nine decisions five are stored and four wait to be."""
    decisions._repository.save([make_record(number) if number != 4 else FOUND for number in range(5)])
    for number in range(5, 9):
        decisions.record(make_record(number))
    return decisions


async def test_a_page_is_what_its_schema_says(client: httpx.AsyncClient, half_stored: DecisionLog) -> None:
    told = (await client.get("/decisions", params={"limit": 7})).json()
    shown = [decision(record) for record in await half_stored.recent(7)]
    wanted = DecisionList(items=tuple(shown), next="d2", store_problem="not opened yet")
    assert told == wanted.model_dump(mode="json", by_alias=True)
    assert told["items"][4]["shortfall"]["why"]
    assert told["items"][0]["candidates"][0]["matchedBlocks"] == 4


@pytest.mark.parametrize(("many", "turns"), [(0, 0), (1, 1), (AT_ONCE, 1), (500, 25)])
async def test_other_work_goes_on_while_a_page_is_written(many: int, turns: int) -> None:
    writing = listed([make_record(number) for number in range(many)], DecisionList(items=(), store_problem=None))
    assert sum(1 for _ in writing.__await__()) == turns


async def names(client: httpx.AsyncClient, **asked: Any) -> tuple[list[str], str | None]:
    answer = await client.get("/decisions", params=asked)
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["items"]], answer.json()["next"]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 9, 10])
async def test_pages_join_to_the_whole(client: httpx.AsyncClient, half_stored: DecisionLog, limit: int) -> None:
    seen: list[str] = []
    page, cursor = await names(client, limit=limit)
    seen += page
    while cursor:
        assert len(page) == limit
        page, cursor = await names(client, limit=limit, before=cursor)
        seen += page
    assert seen == [f"d{number}" for number in range(8, -1, -1)]


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "m"},
        {"requestId": "r 4/ü"},
        {"tenant": "t"},
        {"outcome": "failed"},
        {"shortfall": "stale"},
        {"shortfall": "any"},
        {"pool": "ns/p"},
        {"worker": "w"},
        {"worker": "ns/p/w"},
        {"since": "2023-11-14T22:13:24Z", "until": "2023-11-14T22:13:25Z"},
        {"model": "m", "outcome": "failed", "tenant": "t"},
    ],
)
async def test_each_condition_finds_it(
    client: httpx.AsyncClient, half_stored: DecisionLog, asked: dict[str, str]
) -> None:
    assert await names(client, **asked) == (["d4"], None)
    assert await names(client, **asked | {"tenant": "nobody"}) == ([], None)


@pytest.mark.parametrize(
    "query",
    ["outcome=lost", "shortfall=lost", "since=yesterday", "since=2023-11-14T22:13:24", "limit=501", "before=", "x=1"],
)
async def test_what_cannot_be_asked_is_refused_by_name(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"/decisions?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == f"query.{query.partition('=')[0]}"


async def test_a_page_after_the_first_is_no_end_where_the_store_fails(
    client: httpx.AsyncClient, half_stored: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise StoreError("unavailable", "away")

    monkeypatch.setattr(half_stored._repository, "recent", failing)
    assert (await names(client, limit=9))[0] == ["d8", "d7", "d6", "d5"]
    assert (await names(client, before="d6"))[0] == ["d5"]
    assert (await client.get("/decisions", params={"before": "d3"})).status_code == 503
