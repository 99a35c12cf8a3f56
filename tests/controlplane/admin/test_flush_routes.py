"""``POST /flush``: what it takes, and how answers are shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from cachefleet_controlplane.admin.admin_app import PATH, AdminParts, admin_app
from cachefleet_controlplane.flushing.flush_scope import Scope
from cachefleet_controlplane.flushing.flusher import WorkerFlush
from cachefleet_controlplane.store.audit_log import AuditLog
from cachefleet_controlplane.wire.errors import ApiError
from tests.controlplane.admin.conftest import TOKEN

TOLD = [
    WorkerFlush(worker="a", pool="ns/p", blocks=3, tokens=48, busy=1),
    WorkerFlush(worker="b", pool="ns/p", error="no plugin", status=0),
]


class Flushing:
    """Remembers what was asked; tells TOLD, or fails."""

    def __init__(self) -> None:
        self.asked: list[tuple[Scope, bool]] = []
        self.error: ApiError | None = None

    async def __call__(self, scope: Scope, *, dry_run: bool) -> list[WorkerFlush]:
        self.asked.append((scope, dry_run))
        if self.error is not None:
            raise self.error
        return TOLD


@pytest.fixture
def flushing() -> Flushing:
    return Flushing()


@pytest.fixture
async def http(  # noqa: PLR0917 - fixtures
    fleet: Any,
    decisions: Any,
    service: Any,
    usage: Any,
    oracle: Any,
    doorkeeper: Any,
    flushing: Flushing,
    audit: AuditLog,
) -> AsyncIterator[httpx.AsyncClient]:
    given: dict[str, Any] = {"service": service, "usage": usage, "explain": oracle, "audit": audit}
    app = admin_app(AdminParts(fleet=fleet, decisions=decisions, flush=flushing, **given), authorize=doorkeeper)
    transport = httpx.ASGITransport(app=Starlette(routes=[Mount(PATH, app)]), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://internal{PATH}") as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        yield client


async def test_answers_and_sums(http: httpx.AsyncClient, flushing: Flushing) -> None:
    scope = {"model": "m", "pool": "ns/p", "worker": "a", "tenant": "acme", "prompt": {"prompt": "x"}}
    answer = await http.post("flush", json={"scope": scope, "dryRun": True})
    assert answer.status_code == 200
    assert answer.json() == {
        "workers": [
            {"worker": "a", "pool": "ns/p", "blocks": 3, "tokens": 48, "busy": 1, "error": None},
            {"worker": "b", "pool": "ns/p", "blocks": 0, "tokens": 0, "busy": 0, "error": "no plugin"},
        ],
        "blocks": 3,
        "tokens": 48,
        "busy": 1,
        "dryRun": True,
    }
    assert flushing.asked == [(Scope(model="m", pool="ns/p", worker="a", tenant="acme", prompt={"prompt": "x"}), True)]


async def test_the_audit_log_has_what_was_flushed_and_no_prompt(http: httpx.AsyncClient, audit: AuditLog) -> None:
    await http.post("flush", json={"scope": {"model": "m", "prompt": {"prompt": "private"}}, "dryRun": True})
    await http.post("flush", json={"scope": {"all": True}})
    last, first = await audit.recent(2)
    assert first.change == {"scope": {"model": "m", "prompt": True}, "dryRun": True}
    assert "private" not in repr(first)
    assert last.change == {"scope": {"all": True}, "dryRun": False}


async def test_everything_has_to_be_said(http: httpx.AsyncClient, flushing: Flushing) -> None:
    assert (await http.post("flush", json={"scope": {"all": True}})).status_code == 200
    assert flushing.asked == [(Scope(everything=True), False)]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body.scope"),
        ({"scope": {"modle": "m"}}, "body.scope.modle"),
        ({"scope": {"model": ""}}, "body.scope.model"),
        ({"scope": {"prompt": "text"}}, "body.scope.prompt"),
        ({"scope": {"all": True}, "dry": True}, "body.dry"),
        ({"scope": {"all": True}, "dryRun": "maybe"}, "body.dryRun"),
    ],
)
async def test_wrong_fields_are_named(
    http: httpx.AsyncClient, flushing: Flushing, body: dict[str, Any], field: str
) -> None:
    answer = await http.post("flush", json=body)
    assert answer.status_code == 422
    assert [each["field"] for each in answer.json()["errors"]] == [field]
    assert flushing.asked == []


async def test_a_wrong_scope_is_a_problem_with_its_field(http: httpx.AsyncClient, flushing: Flushing) -> None:
    flushing.error = ApiError(404, "no model `x` is served", param="scope.model")
    answer = await http.post("flush", json={"scope": {"model": "x"}})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert answer.json()["errors"] == [{"field": "body.scope.model", "message": "no model `x` is served"}]
