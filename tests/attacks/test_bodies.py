"""Request bodies: costly, endless, compressed, and members that only the control plane may set."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.target import ADMIN, CHAT, Target, attacked
from tests.controlplane.gateway.harness import MODEL
from tests.controlplane.waiting import until

MIB = 1024 * 1024
COSTLY = {
    "objects": b'{"messages":[' + b",".join([b"{}"] * 2_700_000) + b"]}",
    "members": b"{" + b",".join(b'"%d":1' % index for index in range(800_000)) + b"}",
    "depth": b'{"messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "xargs": b'{"vllm_xargs":{' + b",".join(b'"%d":1' % index for index in range(800_000)) + b"}}",
    "not JSON": b"[" * (8 * MIB),
}


@pytest.mark.parametrize("name", COSTLY)
async def test_a_body_that_costs_more_than_its_bytes(target: Target, name: str) -> None:
    for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/route"):
        assert (await target.post(target.plane.gateway + path, COSTLY[name]))[0] == 400
    assert not target.worker.requests


async def test_a_costly_body_for_the_admin_api(target: Target) -> None:
    for path in ("/tenants", "/explain"):
        for body in (COSTLY["depth"], COSTLY["objects"][:MIB]):
            url, token = f"{target.plane.internal}/admin/v1{path}", f"Bearer {ADMIN}"
            assert 400 <= (await target.post(url, body, authorization=token))[0] < 500


async def test_a_body_that_unpacks_to_more(target: Target) -> None:
    bomb = gzip.compress(b'{"messages":"' + b" " * (64 * MIB) + b'"}')
    assert len(bomb) < MIB
    assert (await target.post(target.plane.gateway + CHAT, bomb, content_encoding="gzip"))[0] == 413


async def test_half_sent_bodies_of_one_tenant_leave_room_for_others(tmp_path: Path) -> None:
    async with attacked(tmp_path, request_max_bytes=4 * MIB, request_buffer_bytes=16 * MIB) as target:
        greedy, other = await target.tenant("greedy"), await target.tenant("other")
        held = target.plane.plane.gateway.bodies
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(8):
                await stack.enter_async_context(_half_sent(target.gateway, greedy, 4 * MIB))
            await until(lambda: held.held_bytes > 4 * MIB)
            assert (await target.chat("x" * MIB, key=other, max_tokens=1))[0] in {200, 400}  # read whole
            assert (await target.chat(key=other))[0] == 200
            assert held.held_bytes <= 8 * MIB
        await until(lambda: held.held_bytes == 0)


@contextlib.asynccontextmanager
async def _half_sent(port: int, key: str, size: int) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {size}\r\n\r\n"
    sending = asyncio.create_task(_send(writer, head.encode() + b" " * (size - 1)))
    try:
        yield reader
    finally:
        sending.cancel()
        writer.close()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()


PRIVATE: dict[str, Any] = {
    "cache_salt": "victim",
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.0.0.1"},
    "ec_transfer_params": {"x": 1},
    "data_parallel_rank": 3,
    "mm_payload": "x",
}


async def test_members_that_only_the_control_plane_sets(target: Target) -> None:
    xargs = PRIVATE | {"cachefleet_anything": "x", "kept": 1}
    assert (await target.chat(**PRIVATE, vllm_xargs=xargs))[0] == 200
    (sent,) = target.sent()
    assert sent.get("cache_salt") != "victim"
    assert not (PRIVATE.keys() - {"cache_salt"}) & sent.keys()
    assert "kv_transfer_params" not in sent["vllm_xargs"]
    assert "cachefleet_anything" not in sent["vllm_xargs"]


@pytest.mark.parametrize("twice", ["cache_salt", "model", "vllm_xargs"])
async def test_a_member_that_comes_twice_is_sent_once(target: Target, twice: str) -> None:
    told = {"cache_salt": '"victim"', "model": f'"{MODEL}"', "vllm_xargs": '{"cache_salt":"victim"}'}[twice]
    again = f',"{twice}":{told}'
    body = f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"x"}}],"max_tokens":1{again}{again}}}'
    await target.post(target.plane.gateway + CHAT, body.encode())
    for seen in target.worker.requests:
        assert seen.body.count(f'"{twice}"'.encode()) <= 1
        assert b"victim" not in seen.body


async def test_an_escaped_name_is_the_same_name(target: Target) -> None:
    escaped = b'"cache\\u005fsalt":"victim"'
    body = b'{"model":"%s","messages":[{"role":"user","content":"x"}],"max_tokens":1,%s}' % (MODEL.encode(), escaped)
    assert (await target.post(target.plane.gateway + CHAT, body))[0] == 200
    assert json.loads(target.worker.requests[-1].body).get("cache_salt") != "victim"
