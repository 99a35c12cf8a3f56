"""Nothing of a prompt is in what a whole control plane logs, counts, stores, and shows by its API and its pages."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from cachefleet_core.report_frames import Hello
from tests.controlplane.gateway.harness import CONTRACT, MODEL, POOL, WORKER_KEY, chat, engine, report
from tests.controlplane.wiring.test_control_plane import Plane, running
from tests.fakes.engine import FakeEngine

MARK: Final = "zanzibar-4711"
LONG: Final = "what a prompt's shape is made of " * 30
NAMED: Final = {"decision_id": "/decisions", "tenant": "/tenants", "name": "/pools"}
"""Which list has what a parameter of a path names."""
ENDLESS: Final = "/decisions/stream"
PICTURE: Final = {"type": "image_url", "image_url": {"url": f"https://pictures.example/{MARK}.png"}}
TOOL: Final = {"type": "function", "function": {"name": MARK, "description": MARK, "parameters": {"title": MARK}}}
CALL: Final = {"id": MARK, "type": "function", "function": {"name": MARK, "arguments": json.dumps({MARK: MARK})}}


def talk(front: str) -> list[dict[str, Any]]:
    """A chat with the mark in every kind of part that text can be in."""
    return [
        {"role": "system", "content": f"{front} {LONG} {MARK}"},
        {"role": "user", "content": [{"type": "text", "text": f"{MARK} {LONG}"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": MARK, "content": MARK},
        {"role": "user", "content": MARK},
    ]


def requests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Paths and bodies: each API, a cause in the prompt, streams, and what is refused."""
    for front in ("2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z", f"id {MARK}"):
        yield "/v1/chat/completions", chat("x", messages=talk(front), tools=[TOOL], metadata={MARK: MARK}, user=MARK)
    yield "/v1/chat/completions", chat("x", messages=talk("other"), stream=True, stop=[MARK])
    yield "/v1/chat/completions", chat("x", messages=[{"role": "user", "content": [PICTURE]}])
    yield "/v1/completions", {"model": MODEL, "prompt": f"{MARK} {LONG}", "max_tokens": 4}
    yield "/v1/messages", {"model": MODEL, "system": MARK, "messages": talk("x")[1:2], "max_tokens": 4}
    yield "/v1/responses", {"model": MODEL, "instructions": MARK, "input": f"{MARK} {LONG}", "max_output_tokens": 4}
    yield "/v1/embeddings", {"model": MODEL, "input": [MARK, LONG]}
    yield "/v1/rerank", {"model": MODEL, "query": MARK, "documents": [MARK]}
    yield "/v1/route", chat("x", messages=talk("2026-01-01T00:00:19Z"), tools=[TOOL], lint=True)
    yield "/v1/chat/completions", chat(MARK, max_tokens=f"many {MARK}")
    yield "/v1/chat/completions", {"model": MARK, "messages": [{"content": MARK}]}
    yield "/v1/chat/completion", {"prompt": MARK}


async def test_nothing_of_a_prompt_is_left_anywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))  # of a host that is an address
    async with engine(pooling=True) as worker, running(tmp_path, worker, access_log=True) as plane, session as http:
        statuses = [status async for status in _asked(http, plane, worker)]
        http.headers["authorization"] = "Bearer for-people"
        await _asked_of_people(http, plane)
        read = {path: text async for path, text in _read(http, plane)}
        seen = b"".join(request.body for request in worker.requests)
    assert statuses.count(200) >= 9, statuses
    assert MARK.encode() in seen, "it was asked"
    record = read["/admin/v1/decisions"].decode()
    assert all(f'"{name}":' in record for name in ("lost", "candidates", "predictedTokens"))
    assert '"cause":"time"' in read["/admin/v1/prompt-causes"].decode() + record, "a cause in the prompt was found"
    read |= {file.name: file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file()}
    assert read["controlplane.db"].startswith(b"SQLite format 3")
    read["log"] = caplog.text.encode()
    assert b"/v1/chat/completions" in read["log"], "the access log is in it"
    assert [where for where, text in read.items() if MARK.encode() in text or WORKER_KEY.encode() in text] == []


async def _asked(http: aiohttp.ClientSession, plane: Plane, worker: FakeEngine) -> AsyncIterator[int]:
    """Statuses of all requests; before each, the worker reports what it holds."""
    hello = Hello(worker="demo-0", pool=POOL, epoch="e0", endpoint=worker.url, contract=CONTRACT)
    for path, body in requests():
        report(plane.plane.fleet, worker, hello)
        async with http.post(plane.gateway + path, json=body, headers={"x-cachefleet-trace": "1"}) as answer:
            told = await answer.read()
            yield answer.status
        if answer.status < 300:
            headers = {name: text for name, text in answer.headers.items() if name.startswith("x-cachefleet")}
            assert MARK not in repr(headers), (path, told)


async def _asked_of_people(http: aiohttp.ClientSession, plane: Plane) -> None:
    """What people send of prompts to the admin API."""
    body = chat("x", messages=talk("2026-01-01T00:00:29Z"))
    flush = {"scope": {"model": MODEL, "prompt": body}, "dryRun": True}
    for path, sent in (("/explain", body), ("/flush", flush)):
        async with http.post(f"{plane.internal}/admin/v1{path}", json=sent) as answer:
            assert answer.status == 200, await answer.text()
            assert MARK not in await answer.text()


async def _read(http: aiohttp.ClientSession, plane: Plane) -> AsyncIterator[tuple[str, bytes]]:
    """The metrics, every document that the admin API has, and the console's pages, by path."""
    yield "/metrics", await _get(http, plane, "/metrics")
    document = json.loads(await _get(http, plane, "/admin/v1/openapi.json"))
    for path in sorted(path for path, methods in document["paths"].items() if "get" in methods):
        if path != ENDLESS:
            async for each in _each(http, plane, path):
                yield f"/admin/v1{each}", await _get(http, plane, f"/admin/v1{each}")
    form = {"token": "for-people"}
    async with http.post(f"{plane.internal}/console/sign-in", data=form, headers={"origin": plane.internal}) as answer:
        assert answer.status == 200, await answer.text()
        front = await answer.text()
    pages = set(re.findall(r'href="(/console/[^"#?]*)"', front)) - {"/console/events"}
    assert len(pages) >= 9
    for page in sorted(pages):
        yield page, await _get(http, plane, page)
    for one in json.loads(await _get(http, plane, "/admin/v1/decisions"))["items"]:
        yield f"/console/requests/{one['id']}", await _get(http, plane, f"/console/requests/{one['id']}")


async def _each(http: aiohttp.ClientSession, plane: Plane, path: str) -> AsyncIterator[str]:
    """The path for each thing that it may name."""
    found = re.search(r"{(\w+)}", path)
    if found is None:
        yield path
        return
    listing = NAMED.get(found[1], "/pools")
    for one in json.loads(await _get(http, plane, f"/admin/v1{listing}"))["items"]:
        names = one | {"decision_id": one.get("id", ""), "tenant": one.get("name", ""), "key_id": "none"}
        yield path.format_map(names)


async def _get(http: aiohttp.ClientSession, plane: Plane, path: str) -> bytes:
    async with http.get(plane.internal + path) as answer:
        text = await answer.read()
        assert answer.status == 200, (path, answer.status, text)
        return text
