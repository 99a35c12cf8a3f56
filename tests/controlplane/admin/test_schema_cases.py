"""Thousands of requests made from the OpenAPI documents: no answer is undocumented, none a server's error."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import requests

pytest.importorskip("schemathesis", reason="schemathesis is a package of the dev group")

from tests.controlplane.admin.schema_cases import Run, run_cases, served
from tests.controlplane.gateway.harness import MODEL
from tests.controlplane.gateway.tenancies import CHAT

ADMIN = "for-people"
FEW = 100
MANY: Final = 20_000
"""In all, every night."""
RUN: Final = 2_000
"""Of one test, which takes some minutes: it chooses other cases every night."""
SHARES: Final = {"gateway": 4, "files and batches": 1, "files and batches that are not served": 1, "admin API": 4}
"""Tests of each document."""
FILES = 24
"""Which some cases delete."""


def _document(url: str, token: str = "") -> dict[str, Any]:
    answer = requests.get(url, headers={"authorization": f"Bearer {token}"}, timeout=60)
    assert answer.status_code == 200
    return dict(answer.json())


def _sound(run: Run, count: int) -> None:
    assert run.cases >= count
    print(run.cases, "cases:", dict(sorted(run.statuses.items())))  # noqa: T201 - shown with -s, or where it fails
    assert not run.faults, "\n\n".join(f"{kind}: {told}" for kind, told in run.faults.items())


def _gateway(folder: Path, count: int, chosen_by: int | None = None) -> None:
    with served(folder) as plane:
        document = _document(f"{plane.gateway}/openapi.json")
        assert not _of_batches(document)
        run = run_cases(document, plane.gateway, count=count, hints={"model": [MODEL]}, chosen_by=chosen_by)
    _sound(run, count)
    assert {200, 400, 404} <= run.statuses.keys()


def _of_batches(document: dict[str, Any]) -> dict[str, Any]:
    """The paths that are served by choice."""
    return {path: told for path, told in document["paths"].items() if path.startswith(("/v1/files", "/v1/batches"))}


def _batches(folder: Path, count: int, chosen_by: int | None = None) -> None:
    with served(folder, batches=True) as plane:
        document = _document(f"{plane.gateway}/openapi.json")
        document["paths"] = _of_batches(document)
        assert len(document["paths"]) == 6
        files = [_kept(plane.gateway) for _ in range(FILES)]
        batches = [_begun(plane.gateway, file) for file in files[: FILES // 2]]
        hints = {"file_id": files, "input_file_id": files, "batch_id": batches, "after": [*files, *batches]}
        run = run_cases(document, plane.gateway, count=count, hints=hints, chosen_by=chosen_by)
        assert requests.get(f"{plane.gateway}/health", timeout=60).status_code == 200
    _sound(run, count)
    assert {200, 400, 404} <= run.statuses.keys()


def _kept(gateway: str) -> str:
    asked = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": MODEL, "messages": []}}
    form: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", json.dumps(asked))}}
    return str(requests.post(f"{gateway}/v1/files", **form, timeout=60).json()["id"])


def _begun(gateway: str, file: str) -> str:
    asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    return str(requests.post(f"{gateway}/v1/batches", json=asked, timeout=60).json()["id"])


def _unserved(folder: Path, count: int, chosen_by: int | None = None) -> None:
    """What is asked of files and batches where they are not served."""
    with served(folder, batches=True) as plane:
        document = _document(f"{plane.gateway}/openapi.json")
        document["paths"] = _of_batches(document)
    (folder / "without").mkdir()
    with served(folder / "without") as plane:
        run = run_cases(document, plane.gateway, count=count, hints={}, chosen_by=chosen_by)
    _sound(run, count)
    assert run.statuses.keys() == {404}


def _admin(folder: Path, count: int, chosen_by: int | None = None) -> Run:
    with served(folder) as plane:
        base = f"{plane.internal}/admin/v1"
        document = _document(f"{base}/openapi.json", ADMIN)
        assert document["paths"].pop("/decisions/stream"), "it does not end"
        body = json.dumps({"name": "acme"})
        headers = {"authorization": f"Bearer {ADMIN}", "content-type": "application/json"}
        assert requests.post(f"{base}/tenants", data=body, headers=headers, timeout=60).status_code == 201
        hints = {"tenant": ["acme"], "namespace": ["default"], "name": ["demo", "umbrella"], "model": [MODEL]}
        run = run_cases(document, base, count=count, hints=hints, token=ADMIN, chosen_by=chosen_by)
    _sound(run, count)
    assert {200, 400, 404, 422} <= run.statuses.keys()
    return run


def _changes(folder: Path, count: int, chosen_by: int | None = None) -> None:
    assert 201 in _admin(folder, count, chosen_by).statuses


def test_some_requests_of_the_gateway(tmp_path: Path) -> None:
    _gateway(tmp_path, FEW)


def test_some_requests_for_files_and_batches(tmp_path: Path) -> None:
    _batches(tmp_path, FEW // 2)


def test_some_requests_for_batches_that_are_not_served(tmp_path: Path) -> None:
    _unserved(tmp_path, FEW // 4)


def test_some_requests_of_the_admin_api(tmp_path: Path) -> None:
    _admin(tmp_path, FEW)


DOCUMENTS: Final[dict[str, Callable[[Path, int, int], object]]] = {
    "gateway": _gateway,
    "files and batches": _batches,
    "files and batches that are not served": _unserved,
    "admin API": _changes,
}
RUNS: Final = [(document, turn) for document, share in SHARES.items() for turn in range(share)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("document", "turn"), RUNS)
def test_thousands_of_requests(tmp_path: Path, document: str, turn: int) -> None:
    """Chosen by the seed of the whole run of tests, which repeats them: pytest -p "randomly_seed=..."."""
    assert len(RUNS) * RUN == MANY
    chosen_by = random.getrandbits(32) + turn
    print(f"{document}: chosen by {chosen_by}")  # noqa: T201 - where it fails
    DOCUMENTS[document](tmp_path, RUN, chosen_by)
