"""A whole control plane that keeps the files of batches in object storage."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from cachefleet_controlplane.wiring.control_plane import ControlPlane
from cachefleet_controlplane.wiring.settings import SettingsError
from tests.controlplane.gateway.harness import engine
from tests.controlplane.waiting import until
from tests.controlplane.wiring.test_control_plane import BOUNDS, running, settings

pytest.importorskip("obstore", reason="obstore is of the extra object-storage")

CONTENT = b'{"custom_id": "a"}\n'


async def test_files_are_in_object_storage_and_go_with_their_rows(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    async with (
        engine() as worker,
        running(tmp_path, worker, batches=True, files_url=f"file://{folder}") as plane,
        aiohttp.ClientSession(plane.gateway) as http,
    ):
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", CONTENT, filename="in.jsonl")
        async with http.post("/v1/files", data=form) as made:
            file = (await made.json())["id"]
        assert [path.parent.name for path in folder.rglob("*") if path.is_file()] == [file]
        async with http.get(f"/v1/files/{file}/content") as answer:
            assert await answer.read() == CONTENT
        async with http.delete(f"/v1/files/{file}") as deleted:
            assert deleted.status == 200
        await until(lambda: not [path for path in folder.rglob("*") if path.is_file()])


async def test_storage_that_the_library_does_not_take_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    async with engine() as worker:
        told = settings(tmp_path, worker, {"gateway": 0, "internal": 0}, batches=True, files_url="az://container/path")
        with pytest.raises(SettingsError, match="CACHEFLEET_FILES_URL: the object storage cannot be used"):
            ControlPlane(told, BOUNDS)
