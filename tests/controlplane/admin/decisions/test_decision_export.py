"""Decisions as JSON lines: the same as the list, page by page, and cut off where the store fails on the way."""

import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from cachefleet_controlplane.admin.answers import json_lines
from cachefleet_controlplane.store.decision_filter import DecisionFilter
from cachefleet_controlplane.store.decision_log import DecisionLog
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.store.store_errors import StoreError
from tests.controlplane.store.conftest import make_record


@pytest.fixture
async def seven(decisions: DecisionLog, monkeypatch: pytest.MonkeyPatch) -> DecisionLog:
    """Seven decisions, read three at a time."""
    monkeypatch.setattr(json_lines, "PAGE", 3)
    decisions._repository.save([make_record(number, model="ab"[number % 2]) for number in range(7)])
    return decisions


async def lines(client: httpx.AsyncClient, **asked: Any) -> list[dict[str, Any]]:
    answer = await client.get("/decisions/export", params=asked)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/jsonl")
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_it_has_what_the_list_has(client: httpx.AsyncClient, seven: DecisionLog) -> None:
    assert await lines(client) == (await client.get("/decisions")).json()["items"]
    assert [one["id"] for one in await lines(client, model="a")] == ["d6", "d4", "d2", "d0"]
    assert [one["id"] for one in await lines(client, limit=4)] == ["d6", "d5", "d4", "d3"]
    assert await lines(client, tenant="nobody") == []


async def test_part_of_them_is_not_taken_for_all_where_the_store_fails(
    client: httpx.AsyncClient, seven: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    seven.record(make_record(8))
    monkeypatch.setattr(seven._repository, "recent", _failing)
    assert (await client.get("/decisions/export")).status_code == 503


async def test_an_answer_that_fails_on_its_way_is_cut_off(
    app: FastAPI, client: httpx.AsyncClient, seven: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = seven._repository.recent(3)

    def once(_limit: int, _wanted: DecisionFilter, *, before: str | None) -> list[DecisionRecord]:
        if before:
            raise StoreError("unavailable", "away")
        return first

    monkeypatch.setattr(seven._repository, "recent", once)
    strict = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=strict, base_url="http://internal", headers=client.headers) as watched:
        with pytest.raises(
            RuntimeError, match="already started"
        ):  # a server closes the connection before the answer's end
            await watched.get("/decisions/export")


def _failing(*_: object, **__: object) -> None:
    raise StoreError("unavailable", "away")
