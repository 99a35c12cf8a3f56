"""Files and batches are in the gateway's document where they are served; what no database takes is refused by name."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from cachefleet_controlplane.gateway.batches.batch_lines import MAX_MODEL
from cachefleet_controlplane.store.database import Database
from tests.controlplane.gateway.batches.running import Batches, Gate, line
from tests.controlplane.gateway.harness import front
from tests.controlplane.gateway.tenancies import ACME, CHAT, KEYS

AS_ACME = {"authorization": f"Bearer {KEYS[ACME.name]}"}


async def paths(gate: Any) -> set[str]:
    async with gate.http.get(f"{gate.url}/openapi.json", headers=AS_ACME) as answer:
        return {path for path in (await answer.json())["paths"] if path.startswith(("/v1/files", "/v1/batches"))}


async def test_they_are_described_where_they_are_served(database: Database) -> None:
    async with front([]) as without:
        assert await paths(without) == set()
    async with Batches(database).served([]) as gate, gate.running():
        assert await paths(gate.front) == {
            *("/v1/files", "/v1/files/{file_id}", "/v1/files/{file_id}/content"),
            *("/v1/batches", "/v1/batches/{batch_id}", "/v1/batches/{batch_id}/cancel"),
        }
        await what_no_database_takes(gate)
        assert (gate.batches.failed, gate.batches.keeping.failed) == ([], [])


async def what_no_database_takes(gate: Gate) -> None:
    """PostgreSQL takes no text with a NUL, and none longer than its column: that fails no store for all others."""
    for path in ("/v1/files/%00", "/v1/files/a%00/content", "/v1/batches/%00", "/v1/batches/%C3%A4"):
        assert await status(gate, "GET", path) == 404
    for path in ("/v1/files?after=%00", "/v1/batches?after=%00"):
        assert await status(gate, "GET", path) == 400
    assert await status(gate, "GET", "/v1/files?purpose=%00") == 200
    form = b"".join(
        b"--b\r\ncontent-disposition: form-data; %b\r\n\r\n%b\r\n" % field
        for field in ((b'name="purpose"', b"batch"), (b'name="file"; filename="a\0b"', b"x"))
    )
    kind = "multipart/form-data; boundary=b"
    made, _, told = await gate.front.post("/v1/files", form + b"--b--\r\n", content_type=kind, **AS_ACME)
    assert made == 200, told
    assert b'"filename":"ab"' in told
    asked: dict[str, Any] = {"endpoint": CHAT, "completion_window": "24h"}
    with pytest.raises(openai.NotFoundError):
        await gate.acme.batches.create(input_file_id="\0", **asked)
    for model in ("\0", "m" * (MAX_MODEL + 1)):
        batch = await gate.ended(await gate.begun([line("a", model=model)]))
        assert (batch.status, batch.errors.data[0].param) == ("failed", "body.model")


async def status(gate: Gate, method: str, path: str) -> int:
    async with gate.front.http.request(method, gate.front.url + path, headers=AS_ACME) as answer:
        return int(answer.status)
