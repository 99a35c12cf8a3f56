"""Files of tenants through the official client: on each database, bounded, encrypted, for their tenant alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from cachefleet_controlplane.gateway.files.file_object import DAY, PART_BYTES, FileBounds
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.sql_tenants import SqlTenants
from cachefleet_controlplane.wire.errors import ApiError
from tests.controlplane.gateway.apis.client_setup import clients
from tests.controlplane.gateway.files.keeping import BEGINNING, Keeping
from tests.controlplane.gateway.harness import MODEL, Front, Known, front
from tests.controlplane.gateway.tenancies import ACME, KEYS, UMBRELLA, directory
from tests.controlplane.waiting import until

SECRET = b'{"custom_id": "a", "secret": "prompt of somebody"}\n'
BOUNDS = FileBounds(file_bytes=3 * PART_BYTES, tenant_bytes=4 * PART_BYTES, stall_seconds=30)


@dataclass
class Gate:
    """A gateway, and the official client of each tenant."""

    front: Front
    acme: openai.AsyncOpenAI
    umbrella: openai.AsyncOpenAI


@asynccontextmanager
async def serving(keeping: Keeping) -> AsyncIterator[Gate]:
    async with front([], batches=keeping.routes, known=Known(directory(ACME, UMBRELLA))) as made:
        asking = [clients(made.url, model=MODEL, key=KEYS[one.name]).openai for one in (ACME, UMBRELLA)]
        async with asking[0], asking[1]:
            yield Gate(made, *asking)


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    with closing(Database(f"sqlite:///{tmp_path / 'kept.db'}", timeout_seconds=10)) as database:
        yield Keeping(database, BOUNDS)


@pytest.fixture
async def gate(keeping: Keeping) -> AsyncIterator[Gate]:
    async with serving(keeping) as made:
        yield made


async def upload(asking: openai.AsyncOpenAI, content: bytes = SECRET, **more: Any) -> Any:
    return await asking.files.create(file=("a ä.jsonl", content), purpose="batch", **more)


async def test_files_on_each_database(database: Database) -> None:
    keeping = Keeping(database, BOUNDS)
    async with serving(keeping) as gate:
        await a_file_comes_back(gate, keeping)
        await lists_have_pages(gate, keeping)
        await what_has_expired_is_gone(gate, keeping)


async def a_file_comes_back(gate: Gate, keeping: Keeping) -> None:
    content = SECRET * (2 * PART_BYTES // len(SECRET))
    made = await upload(gate.acme, content)
    assert (made.bytes, made.filename, made.purpose, made.status) == (len(content), "a ä.jsonl", "batch", "processed")
    assert (made.created_at, made.expires_at) == (BEGINNING, BEGINNING + 30 * DAY)
    asking = gate.acme.files
    assert await asking.retrieve(made.id) == made
    assert (await asking.content(made.id)).content == content
    kept = b"".join(bytes(row["sealed"]) for row in keeping.rows("file_parts"))
    assert b"secret" not in kept
    assert 0 < len(kept) < len(content) / 2
    assert (await asking.delete(made.id)).deleted
    assert (keeping.rows("files"), keeping.rows("file_parts")) == ([], [])


async def test_files_are_their_tenants_alone(gate: Gate) -> None:
    made, others = await upload(gate.acme), gate.umbrella.files
    for asked in (others.retrieve, others.content, others.delete):
        with pytest.raises(openai.NotFoundError, match=f"No such File object: {made.id}"):
            await asked(made.id)
    assert (await others.list()).data == []
    assert [one.id for one in (await gate.acme.files.list()).data] == [made.id]
    async with gate.front.http.get(f"{gate.front.url}/v1/files") as refused:
        assert refused.status == 401


async def lists_have_pages(gate: Gate, keeping: Keeping) -> None:
    made = []
    for number in range(5):
        keeping.clock.now += number % 2  # some at the same time
        made.append((await upload(gate.acme)).id)
    asking = gate.acme.files
    newest = [one.id async for one in asking.list(limit=2)]
    assert sorted(newest) == sorted(made)
    assert [one.id async for one in asking.list(limit=2, order="asc")] == newest[::-1]
    assert (await asking.list(purpose="batch_output")).data == []
    for wrong in ({"limit": 0}, {"limit": 10_001}, {"after": "file-nope"}, {"order": "up"}):
        with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
            await asking.list(**wrong)


async def test_bounds_of_a_file_and_of_a_tenant(gate: Gate, keeping: Keeping) -> None:
    with pytest.raises(openai.APIStatusError, match="CACHEFLEET_BATCH_FILE_BYTES") as large:
        await upload(gate.acme, b"a" * (BOUNDS.file_bytes + 1))
    assert large.value.status_code == 413
    kept = await upload(gate.acme, b"a" * BOUNDS.file_bytes)
    with pytest.raises(openai.APIStatusError, match="CACHEFLEET_BATCH_TENANT_BYTES") as full:
        await upload(gate.acme, b"a" * (PART_BYTES + 1))
    assert (full.value.status_code, full.value.code) == (413, "storage_limit")
    assert [row["id"] for row in keeping.rows("files")] == [kept.id]
    await upload(gate.umbrella, b"a" * (PART_BYTES + 1))


async def what_has_expired_is_gone(gate: Gate, keeping: Keeping) -> None:
    soon = await upload(gate.acme, expires_after={"anchor": "created_at", "seconds": 3600})
    late = await upload(gate.acme)
    keeping.clock.now += 3600
    with pytest.raises(openai.NotFoundError):
        await gate.acme.files.retrieve(soon.id)
    await keeping.store.prune()
    kept = {row["id"] for row in keeping.rows("files")}
    assert (soon.id in kept, late.id in kept) == (False, True)
    keeping.clock.now += 30 * DAY
    await keeping.store.prune()
    assert (keeping.rows("files"), keeping.rows("file_parts")) == ([], [])


async def test_what_is_refused(gate: Gate, keeping: Keeping) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"purpose": "fine-tune"}, "`purpose` must be `batch`"),
        ({"expires_after": {"anchor": "created_at", "seconds": 1}}, "from 3600 to 2592000"),
        ({"expires_after": {"anchor": "last", "seconds": 3600}}, "created_at"),
        ({"file": b""}, "empty"),
    ]
    for changes, words in cases:
        with pytest.raises(openai.BadRequestError, match=words):
            await gate.acme.files.create(**({"file": SECRET, "purpose": "batch"} | changes))
    forms = [
        ("application/json", b"{}", "multipart/form-data"),
        ("multipart/form-data; boundary=b", b"--b\r\n", "cut off"),
        ("multipart/form-data; boundary=b", b"--b--\r\n", "`file` is required"),
    ]
    for kind, body, words in forms:
        asked = {"content_type": kind, "authorization": f"Bearer {KEYS[ACME.name]}"}
        status, _, told = await gate.front.post("/v1/files", body, **asked)
        assert (status, words in json.loads(told)["error"]["message"]) == (400, True), told
    assert keeping.rows("files") == []


async def test_an_upload_that_breaks_off_leaves_nothing(gate: Gate, keeping: Keeping) -> None:
    address = urlsplit(gate.front.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    head = (
        f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEYS[ACME.name]}\r\n"
        f"content-length: {BOUNDS.file_bytes}\r\ncontent-type: multipart/form-data; boundary=b\r\n\r\n"
        '--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n'
    )
    writer.write(head.encode() + b"a" * (PART_BYTES + 100))
    await until(lambda: len(keeping.rows("file_parts")) == 1)
    writer.close()
    await until(lambda: keeping.rows("files") == [])
    assert keeping.rows("file_parts") == []


async def test_without_a_store_there_is_a_503(gate: Gate, keeping: Keeping) -> None:
    await upload(gate.acme)
    keeping.database.close()
    keeping.store._opened = True
    with pytest.raises(openai.InternalServerError) as failed:
        await gate.acme.files.list()
    assert (failed.value.status_code, failed.value.response.headers["retry-after"]) == (503, "5")
    assert keeping.failed == ["list"]
    assert len((await gate.acme.files.list()).data) == 1


async def test_a_file_of_another_fleet_key_is_not_there(gate: Gate, keeping: Keeping) -> None:
    made = await upload(gate.acme)
    with keeping.database.transaction(write=True) as connection:
        connection.exec_driver_sql("UPDATE file_parts SET sealed = substr(sealed, 2)")
    with pytest.raises(openai.NotFoundError):
        await gate.acme.files.content(made.id)


async def test_a_tenant_that_is_deleted_leaves_no_files(keeping: Keeping) -> None:
    tenants = SqlTenants(keeping.database)
    tenants.open()
    tenants.create(ACME)
    writer = await keeping.files.begin(ACME.name, "f", "batch")
    await writer.write(SECRET)
    await writer.finish(seconds=DAY)
    tenants.delete(ACME.name)
    assert (keeping.rows("files"), keeping.rows("file_parts")) == ([], [])
    with pytest.raises(ApiError):
        await writer.write(b"a" * PART_BYTES)


async def test_without_batches_a_404_says_so() -> None:
    async with front([]) as gate:
        status, _, told = await gate.post("/v1/files", b"")
    assert (status, "CACHEFLEET_BATCHES" in told.decode()) == (404, True)
