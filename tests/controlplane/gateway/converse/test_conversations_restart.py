"""Conversations in the whole control plane: kept over a restart, in the database of its data folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp

from tests.controlplane.gateway.harness import MODEL, chat, engine
from tests.controlplane.wiring.test_control_plane import POOL_FILE, Plane, running

STORED = POOL_FILE.replace("  engine:", "  continuation: {storeHistory: true}\n  engine:")


async def post(made: Plane, path: str, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, Any], str]:
    async with aiohttp.ClientSession() as http, http.post(made.gateway + path, json=body, headers=headers) as answer:
        return answer.status, await answer.json(), answer.headers.get("x-cachefleet-decision", "")


async def outcome(made: Plane, decision: str) -> str | None:
    status, body = await made.get(f"/admin/v1/decisions/{decision}", "for-people")
    assert status == 200
    found: str | None = json.loads(body)["continuation"]
    return found


async def test_a_conversation_goes_on_after_a_restart(tmp_path: Path) -> None:
    headers = {"x-cachefleet-session": "s1"}
    async with engine() as worker:
        async with running(tmp_path, worker) as made:
            _, _, first = await post(made, "/v1/chat/completions", chat("hi"), **headers)
            assert await outcome(made, first) == "no_checkpoint"
        async with running(tmp_path, worker) as made:
            _, _, second = await post(made, "/v1/chat/completions", chat("hi"), **headers)
            assert await outcome(made, second) not in {None, "no_checkpoint", "store_failed"}
            _, page = await made.get("/metrics")
            assert b"cachefleet_continuation_turns_total{" in page


async def test_a_response_is_continued_after_a_restart(tmp_path: Path) -> None:
    body = {"model": MODEL, "input": "one", "max_output_tokens": 4}
    async with engine() as worker:
        async with running(tmp_path, worker) as made:
            (tmp_path / "pool.yaml").write_text(STORED)
            status, first = 0, dict[str, Any]()
            while status != 200:  # until the pool file is read anew
                await post(made, "/v1/responses", body)
                _, first, _ = await post(made, "/v1/responses", body)
                async with (
                    aiohttp.ClientSession() as http,
                    http.get(f"{made.gateway}/v1/responses/{first['id']}") as answer,
                ):
                    status = answer.status
        async with running(tmp_path, worker) as made:
            (tmp_path / "pool.yaml").write_text(STORED)
            status = 0
            while status != 200:
                status, second, _ = await post(made, "/v1/responses", body | {"previous_response_id": first["id"]})
                assert status in {200, 400}
            assert second["previous_response_id"] == first["id"]
            assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


async def test_certificates_are_shown_and_examinations_asked_for(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker) as made:
        assert json.loads((await made.get("/admin/v1/certificates", "for-people"))[1]) == {"items": []}
        async with aiohttp.ClientSession() as http:
            url, token = made.internal + "/admin/v1/certify", {"authorization": "Bearer for-people"}
            for body, status in (
                ({"model": MODEL, "chats": 1}, 200),  # no worker has said what its profile is
                ({"model": "nobody"}, 404),
                ({"chats": 0}, 422),
                ({"chats": 201}, 422),
                ({"seed": -1}, 422),
                ({"models": "x"}, 422),
            ):
                async with http.post(url, json=body, headers=token) as answer:
                    assert answer.status == status, body
