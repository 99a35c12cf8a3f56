"""Thousands of requests made from the OpenAPI documents: no answer is undocumented, none a server's error."""

import json
from pathlib import Path
from typing import Any

import pytest
import requests

pytest.importorskip("schemathesis", reason="schemathesis is a package of the dev group")

from tests.controlplane.admin.schema_cases import Run, run_cases, served
from tests.controlplane.gateway.harness import MODEL

ADMIN = "for-people"
FEW = 100
MANY = 2_500
"""Of each document."""


def _document(url: str, token: str = "") -> dict[str, Any]:
    answer = requests.get(url, headers={"authorization": f"Bearer {token}"}, timeout=60)
    assert answer.status_code == 200
    return dict(answer.json())


def _sound(run: Run, count: int) -> None:
    assert run.cases >= count
    print(run.cases, "cases:", dict(sorted(run.statuses.items())))  # noqa: T201 - shown with -s, or where it fails
    assert not run.faults, "\n\n".join(f"{kind}: {told}" for kind, told in run.faults.items())


def _gateway(folder: Path, count: int) -> None:
    with served(folder) as plane:
        document = _document(f"{plane.gateway}/openapi.json")
        run = run_cases(document, plane.gateway, count=count, hints={"model": [MODEL]})
    _sound(run, count)
    assert {200, 400, 404} <= run.statuses.keys()


def _admin(folder: Path, count: int) -> Run:
    with served(folder) as plane:
        base = f"{plane.internal}/admin/v1"
        document = _document(f"{base}/openapi.json", ADMIN)
        assert document["paths"].pop("/decisions/stream"), "it does not end"
        body = json.dumps({"name": "acme"})
        headers = {"authorization": f"Bearer {ADMIN}", "content-type": "application/json"}
        assert requests.post(f"{base}/tenants", data=body, headers=headers, timeout=60).status_code == 201
        hints = {"tenant": ["acme"], "namespace": ["default"], "name": ["demo", "umbrella"], "model": [MODEL]}
        run = run_cases(document, base, count=count, hints=hints, token=ADMIN)
    _sound(run, count)
    assert {200, 400, 404, 422} <= run.statuses.keys()
    return run


def test_some_requests_of_the_gateway(tmp_path: Path) -> None:
    _gateway(tmp_path, FEW)


def test_some_requests_of_the_admin_api(tmp_path: Path) -> None:
    _admin(tmp_path, FEW)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thousands_of_requests_of_the_gateway(tmp_path: Path) -> None:
    _gateway(tmp_path, MANY)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thousands_of_requests_of_the_admin_api(tmp_path: Path) -> None:
    assert 201 in _admin(tmp_path, MANY).statuses
