"""Content of files wherever it is kept: in the database, in a folder, in S3. One suite over all of them."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from cachefleet_controlplane.gateway.files import file_routes
from cachefleet_controlplane.gateway.files.file_object import DAY, FileBounds, KeptFile, new_file_id
from cachefleet_controlplane.gateway.files.files_url import usable_files_url
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.sql_tenants import SqlTenants
from cachefleet_controlplane.wire.errors import ApiError
from tests.controlplane.gateway.batches.running import Batches, line
from tests.controlplane.gateway.files.keeping import Keeping
from tests.controlplane.gateway.files.s3_server import BUCKET, S3Server, s3_server
from tests.controlplane.gateway.files.test_files import SECRET, serving, upload
from tests.controlplane.gateway.harness import engine
from tests.controlplane.gateway.tenancies import ACME
from tests.controlplane.waiting import until

pytest.importorskip("obstore", reason="obstore is of the extra object-storage")

S3 = pytest.param("s3", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])
"""A real server, built once (minutes)."""
LONG = 5 << 19
"""Bytes: some parts, and a half."""
NOWHERE = "http://127.0.0.1:9"
KEYS = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "told-nobody", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3"), KEYS) as made:
        yield made


@dataclass
class Place:
    """Where content is kept, and the folder in which all objects are."""

    keeping: Keeping
    folder: Path

    def left(self) -> list[object]:
        """What is kept of files: rows, parts and objects."""
        objects = [path for path in self.folder.rglob("*") if path.is_file() and "file-" in str(path)]
        return [*self.keeping.rows("files"), *self.keeping.rows("file_parts"), *objects]

    def objects(self) -> bytes:
        """All that is stored, wherever."""
        rows = [bytes(row["sealed"]) for row in self.keeping.rows("file_parts")]
        return b"".join([*rows, *(path.read_bytes() for path in self.folder.rglob("*") if path.is_file())])


@pytest.fixture(params=["database", "folder", S3])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    url, folder = "", tmp_path / "objects"
    if request.param == "folder":
        url = f"file://{folder}"
    elif request.param == "s3":
        made: S3Server = request.getfixturevalue("server")
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        url, folder = f"s3://{BUCKET}/below/{tmp_path.name}", made.folder / BUCKET / "below" / tmp_path.name
    with closing(Database(f"sqlite:///{tmp_path / 'kept.db'}", timeout_seconds=10)) as database:
        yield Place(Keeping(database, url=url), folder)


async def begun(place: Place) -> KeptFile:
    where = place.keeping.files._objects or place.keeping.files._database
    now = place.keeping.clock()
    named: dict[str, Any] = {"name": "f", "purpose": "batch", "bytes": 0, "status": "writing"}
    file = KeptFile(
        id=new_file_id(), tenant=ACME.name, created=now, expires=now + DAY, place=where.place.value, **named
    )
    await place.keeping.store.ask("begin", lambda store: store.begin(file))
    return file


async def test_parts_come_back_until_they_are_forgotten(place: Place) -> None:
    contents, expires = place.keeping.files._objects or place.keeping.files._database, place.keeping.clock() + DAY
    file, other = await begun(place), await begun(place)
    assert await contents.add(file, 0, b"sealed", size=10, expires=expires) == 10
    assert await contents.add(file, 1, b"more", size=5, expires=expires) == 15
    assert await contents.add(other, 0, b"other", size=1, expires=expires) == 16
    assert [await contents.part(file, number) for number in range(3)] == [b"sealed", b"more", None]
    assert await place.keeping.store.ask("delete", lambda store: store.delete(ACME.name, file.id, swept=0.0))
    assert await contents.add(file, 2, b"late", size=1, expires=expires) == 0
    for _ in range(2):
        await contents.forget(file.id)
    assert [await contents.part(file, number) for number in range(3)] == [None] * 3
    assert await contents.part(other, 0) == b"other"
    assert await contents.add(other, 1, b"m", size=1, expires=expires) == 2


async def test_a_file_comes_back_and_goes_whole(place: Place) -> None:
    content = SECRET * (LONG // len(SECRET))
    async with serving(place.keeping) as gate:
        made = await upload(gate.acme, content)
        assert (made.bytes, made.status) == (len(content), "processed")
        assert (await gate.acme.files.content(made.id)).content == content
        with pytest.raises(openai.NotFoundError):
            await gate.umbrella.files.content(made.id)
        stored = place.objects()
        assert 0 < len(stored) < 2 * len(content)
        assert b"prompt of somebody" not in stored
        assert (await gate.acme.files.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await gate.acme.files.content(made.id)
        await place.keeping.files.sweep()
        assert place.left() == []


async def test_a_batch_reads_and_writes_there(place: Place) -> None:
    batches = Batches(place.keeping.database, url=place.keeping.url)
    async with engine() as worker, batches.served([worker]) as gate, gate.running():
        batch = await gate.ended(await gate.begun([line("a"), line("wrong", n=99), line("b")]))
        assert batch.status == "completed"
        assert [one["custom_id"] for one in await gate.told(batch.output_file_id)] == ["a", "b"]
        assert [one["custom_id"] for one in await gate.told(batch.error_file_id)] == ["wrong"]
        places = {row["place"] for row in place.keeping.rows("files")}
        assert places == {"objects" if place.keeping.url else "database"}


async def test_what_is_not_whole_is_swept_once_it_cannot_grow_any_more(place: Place) -> None:
    files, clock = place.keeping.files, place.keeping.clock
    left, dropped = [await files.begin(ACME.name, "f", "batch") for _ in range(2)]
    for writer in (left, dropped):
        await writer.write(b"x" * (3 << 19))
    assert place.objects() != b""
    await dropped.abandon()
    with pytest.raises(ApiError):
        await dropped.write(b"x" * (1 << 20))
    clock.now += files.bounds.landing_seconds
    await files.sweep()
    assert [row["id"] for row in place.keeping.rows("files")] == [left.id]
    clock.now += files.bounds.writing_seconds
    await files.sweep()
    await place.keeping.store.prune()
    assert place.left() == []


async def test_what_a_tenant_had_goes_with_it(place: Place) -> None:
    tenants = SqlTenants(place.keeping.database)
    tenants.open()
    tenants.create(ACME)
    writer = await place.keeping.files.begin(ACME.name, "f", "batch")
    await writer.write(SECRET)
    made = await writer.finish(seconds=DAY)
    tenants.delete(ACME.name)
    with pytest.raises(ApiError):
        await place.keeping.files.file(ACME.name, made.id)
    await place.keeping.files.sweep()
    assert place.left() == []


async def test_a_tenants_bound_holds_there(place: Place) -> None:
    place.keeping.files.bounds = FileBounds(tenant_bytes=1 << 20)
    async with serving(place.keeping) as gate:
        kept = await upload(gate.acme, b"a" * (3 << 18))
        with pytest.raises(openai.APIStatusError, match="CACHEFLEET_BATCH_TENANT_BYTES"):
            await upload(gate.acme, b"a" * (1 << 19))
        await gate.acme.files.delete(kept.id)
        await upload(gate.acme, b"a" * (1 << 19))


@pytest.fixture
def unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeping]:
    for name, value in (KEYS | {"AWS_ENDPOINT": NOWHERE, "AWS_ALLOW_HTTP": "true"}).items():
        monkeypatch.setenv(name, value)
    with closing(Database(f"sqlite:///{tmp_path / 'kept.db'}", timeout_seconds=10)) as database:
        yield Keeping(database, url=f"s3://{BUCKET}")


async def test_storage_that_cannot_be_asked_is_a_503(unreachable: Keeping, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="cachefleet_controlplane")
    async with serving(unreachable) as gate:
        with pytest.raises(openai.InternalServerError) as failed:
            await upload(gate.acme)
        assert (failed.value.status_code, failed.value.response.headers["retry-after"]) == (503, "5")
        assert failed.value.body == {
            "message": "Files cannot be read or kept now.",
            "type": "server_error",
            "param": None,
            "code": "503",
        }
        assert unreachable.failed == ["put"]
        assert "object storage: GenericError" in caplog.text
        assert not any(word in caplog.text for word in ("prompt of somebody", "told-nobody", "somebody"))
        assert (await gate.acme.files.list()).data == []


@pytest.mark.parametrize("place", ["folder", S3], indirect=True)
async def test_files_in_storage_that_is_not_set_any_more_say_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_routes, "RETRY_SECONDS", 600)  # they say so at once
    async with serving(place.keeping) as gate:
        made = await upload(gate.acme)
    async with serving(without := Keeping(place.keeping.database)) as gate:
        with pytest.raises(openai.InternalServerError, match="CACHEFLEET_FILES_URL"):
            await gate.acme.files.content(made.id)
        kept = await upload(gate.acme)
        assert (await gate.acme.files.content(kept.id)).content == SECRET
        await without.files.sweep()
        assert len(without.rows("files")) == 2


@pytest.mark.parametrize("place", ["folder", S3], indirect=True)
async def test_files_of_an_earlier_url_are_read_and_deleted_where_they_are(place: Place, tmp_path: Path) -> None:
    async with serving(place.keeping) as gate:
        made = await upload(gate.acme)
    async with serving(moved := Keeping(place.keeping.database, url=f"file://{tmp_path / 'moved'}")) as gate:
        assert (await gate.acme.files.content(made.id)).content == SECRET
        kept = await upload(gate.acme)
        assert {row["storage"] for row in moved.rows("files")} == {place.keeping.url, moved.url}
        assert [path.parent.name for path in (tmp_path / "moved").rglob("*") if path.is_file()] == [kept.id]
        for file in (made, kept):
            await gate.acme.files.delete(file.id)
        await moved.files.sweep()
    assert place.left() == []
    assert [path for path in (tmp_path / "moved").rglob("*") if path.is_file()] == []


async def test_an_earlier_storage_that_cannot_be_asked_says_so_and_holds_up_no_sweep(
    unreachable: Keeping, tmp_path: Path
) -> None:
    lost = await unreachable.files.begin(ACME.name, "f", "batch")
    with pytest.raises(ApiError):
        await lost.write(b"x" * (1 << 20))
    file = await unreachable.files.finish(lost._file, seconds=DAY)
    moved = Keeping(unreachable.database, url=f"file://{tmp_path / 'moved'}")
    with pytest.raises(ApiError, match="an earlier CACHEFLEET_FILES_URL, which cannot be asked"):
        await moved.files.part(file, 0)
    writer = await moved.files.begin(ACME.name, "g", "batch")
    await writer.write(SECRET)
    kept = await writer.finish(seconds=DAY)
    for one in (file, kept):
        await moved.files.delete(ACME.name, one.id)
    await moved.files.sweep()
    assert [row["id"] for row in moved.rows("files")] == [file.id]


async def test_what_is_deleted_is_swept_at_once(place: Place) -> None:
    writer = await place.keeping.files.begin(ACME.name, "f", "batch")
    await writer.write(SECRET)
    made = await writer.finish(seconds=DAY)
    sweeping = asyncio.create_task(place.keeping.files.run())
    try:
        await place.keeping.files.delete(ACME.name, made.id)
        await until(lambda: place.left() == [])
    finally:
        sweeping.cancel()


@pytest.mark.parametrize("url", ["", "s3://bucket", "s3://bucket/a/b", "gs://b/c", "az://c/d", "file:///var/files"])
def test_urls_that_are_taken(url: str) -> None:
    usable_files_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "bucket",
        "ftp://a/b",
        "http://a/b",
        "s3://",
        "s3://key:secret@bucket",
        "s3://b?region=x",
        "file://",
        "file://a/b",
    ],
)
def test_urls_that_are_not(url: str) -> None:
    with pytest.raises(ValueError, match="allowed: s3://BUCKET/PATH") as refused:
        usable_files_url(url)
    assert "secret" not in str(refused.value)


def test_without_its_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ValueError, match=r"pip install 'cachefleet\[object-storage\]'"):
        usable_files_url("s3://bucket")
