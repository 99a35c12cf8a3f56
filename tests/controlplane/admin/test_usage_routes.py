"""What tenants used, as the admin API exports it."""

from __future__ import annotations

import csv
import io

import httpx
import pytest

from cachefleet_controlplane.store.tenant_records import UsageRecord
from cachefleet_controlplane.store.usage_log import UsageLog
from cachefleet_core.tenancy import TenantId
from tests.controlplane.admin.conftest import NOW
from tests.controlplane.admin.test_admin_app import assert_problem

HOUR = int(NOW) // 3600 * 3600
ROW = {
    "hour": "2027-01-15T08:00:00Z",
    "tenant": "acme",
    "model": "m",
    "requests": 2,
    "promptTokens": 200,
    "cachedTokens": 120,
    "computedTokens": 80,
    "completionTokens": 14,
    "recomputedTokens": 20,
    "charged": "0.0000588",
    "saved": "0.000036",
    "wasted": "0",
    "computeSaved": "9223372",
    "computeWasted": "0.000000000002",
}


def used(hour: int = HOUR, tenant: str = "acme", model: str = "m") -> UsageRecord:
    return UsageRecord(
        hour=hour,
        tenant=TenantId(tenant),
        model=model,
        requests=1,
        prompt_tokens=100,
        cached_tokens=60,
        completion_tokens=7,
        recomputed_tokens=10,
        charged=29_400_000,
        saved=18_000_000,
        compute_saved=4_611_686 * 10**12,
        compute_wasted=1,
    )


async def test_usage_is_by_hour_tenant_and_model(client: httpx.AsyncClient, usage: UsageLog) -> None:
    for record in (used(), used(), used(tenant="umbrella"), used(model="n"), used(HOUR - 7200)):
        usage.record(record)
    span = {"from": "2027-01-15T08:00:00Z", "to": "2027-01-15T09:00:00Z"}
    answer = (await client.get("/usage", params=span)).json()
    assert answer["truncated"] is False
    assert [(item["tenant"], item["model"]) for item in answer["items"]] == [
        ("acme", "m"),
        ("acme", "n"),
        ("umbrella", "m"),
    ]
    assert answer["items"][0] == ROW
    only = (await client.get("/usage", params=span | {"tenant": "umbrella"})).json()["items"]
    assert [item["tenant"] for item in only] == ["umbrella"]


async def test_by_day_hours_are_summed_up(client: httpx.AsyncClient, usage: UsageLog) -> None:
    """For the last 30 days, where no other span is asked for."""
    midnight = HOUR // 86_400 * 86_400
    for hour in (midnight - 31 * 86_400, midnight - 3600, midnight - 86_400, midnight, HOUR - 3600):
        usage.record(used(hour))
    rows = (await client.get("/usage", params={"by": "day"})).json()["items"]
    assert [row["hour"] for row in rows] == ["2027-01-14T00:00:00Z", "2027-01-15T00:00:00Z"]
    assert [row | {"hour": ROW["hour"]} for row in rows] == [ROW, ROW]
    assert "query.by" in str(assert_problem(await client.get("/usage", params={"by": "week"}), 422))


async def test_without_a_span_it_is_the_last_day(client: httpx.AsyncClient, usage: UsageLog) -> None:
    for hour in (HOUR - 24 * 3600, HOUR - 25 * 3600, HOUR - 3600):
        usage.record(used(hour))
    hours = [item["hour"] for item in (await client.get("/usage")).json()["items"]]
    assert hours == ["2027-01-14T08:00:00Z", "2027-01-15T07:00:00Z"]


@pytest.mark.parametrize("accept", ["text/csv", "text/csv; charset=utf-8, application/json;q=0.5"])
async def test_the_same_as_csv(client: httpx.AsyncClient, usage: UsageLog, accept: str) -> None:
    for _ in range(2):
        usage.record(used())
    span = {"to": "2027-01-15T09:00:00Z"}
    answer = await client.get("/usage", params=span, headers={"accept": accept})
    assert answer.headers["content-type"].startswith("text/csv")
    assert "x-cachefleet-truncated" not in answer.headers
    assert list(csv.DictReader(io.StringIO(answer.text))) == [{name: str(value) for name, value in ROW.items()}]


async def test_rows_are_bounded_and_it_says_so(client: httpx.AsyncClient, usage: UsageLog) -> None:
    for number in range(3):
        usage.record(used(model=f"m{number}"))
    parameters = {"to": "2027-01-15T09:00:00Z", "limit": "2"}
    answer = (await client.get("/usage", params=parameters)).json()
    assert (len(answer["items"]), answer["truncated"]) == (2, True)
    in_csv = await client.get("/usage", params=parameters, headers={"accept": "text/csv"})
    assert (len(in_csv.text.splitlines()), in_csv.headers["x-cachefleet-truncated"]) == (3, "true")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("from=2027-01-15T08:00:00", "query.from"),
        ("to=never", "query.to"),
        ("tenant=a/b", "query.tenant"),
        ("limit=0", "query.limit"),
        ("limit=100001", "query.limit"),
    ],
)
async def test_a_bad_query_names_the_field(client: httpx.AsyncClient, query: str, said: str) -> None:
    errors = assert_problem(await client.get(f"/usage?{query}"), 422)["errors"]
    assert [error["field"] for error in errors] == [said]  # type: ignore[attr-defined]


async def test_a_span_may_be_as_long_as_time(client: httpx.AsyncClient, usage: UsageLog) -> None:
    usage.record(used())
    span = {"from": "0001-01-01T00:00:00+14:00", "to": "9999-12-31T23:59:59-14:00"}
    assert len((await client.get("/usage", params=span)).json()["items"]) == 1


@pytest.mark.parametrize(
    "query",
    ["from=2027-01-15T08:00:00Z&to=2027-01-15T08:00:00Z", "from=2030-01-01T00:00:00Z", "to=0001-01-01T00:00:00Z"],
)
async def test_a_span_that_ends_before_it_begins_is_refused(client: httpx.AsyncClient, query: str) -> None:
    assert "query." in str(assert_problem(await client.get(f"/usage?{query}"), 422)["detail"])
