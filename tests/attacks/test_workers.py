"""Workers that answer garbage, without end, or with more than an answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachefleet_controlplane.exposition import exposition
from tests.attacks.hostile_worker import ANSWER, JSON, STREAM, HostileWorker, chunked, hostile_worker, whole
from tests.attacks.target import Target, attacked

MIB = 1024 * 1024


@pytest.fixture
async def hostile() -> AsyncIterator[HostileWorker]:
    async with hostile_worker() as made:
        yield made


@pytest.fixture
async def target(tmp_path: Path, hostile: HostileWorker) -> AsyncIterator[Target]:
    async with attacked(tmp_path, worker=hostile, knowledge="load", max_attempts=1) as made:
        yield made


def _endless(piece: bytes, number: int = 400) -> Iterator[bytes]:
    yield STREAM
    for _ in range(number):
        yield b"%x\r\n%s\r\n" % (len(piece), piece)


GARBAGE: dict[str, Iterable[bytes]] = {
    "nothing": (),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n",),
    "a head without end": (JSON, *([b"a: b\r\n" * 20_000] * 8)),
    "a long header": (JSON, b"a: " + b"b" * MIB),
    "a length that is none": (JSON + b"content-length: x\r\n\r\n", ANSWER),
    "two lengths": (JSON + b"content-length: 1\r\ncontent-length: 400\r\n\r\n", ANSWER),
    "cut": (JSON + b"content-length: 9999\r\n\r\n", ANSWER),
    "no JSON": whole(b"<html>"),
    "deep": whole(b"[" * 100_000),
    "another status line": (b"HTTP/1.1 999 \xff\r\n\r\n",),
    "an informal answer for ever": (b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_an_answer_that_is_none(target: Target, hostile: HostileWorker, name: str) -> None:
    hostile.answer = GARBAGE[name]
    status, _, told = await target.chat()
    assert status in {200, 502, 503, 504}
    assert status != 200 or name in {"no JSON", "deep"}
    assert b"Traceback" not in told


STREAMS: dict[str, Callable[[], Iterable[bytes]]] = {
    "an event without end": lambda: _endless(b"x" * MIB, 80),
    "one event of 70 MB": lambda: chunked(b"data: ", *([b"x" * MIB] * 70), b"\n\n"),
    "empty events": lambda: chunked(*([b"\n\n" * 1000] * 10)),
    "no events": lambda: chunked(b"<html>"),
    "a bad chunk": lambda: (STREAM, b"zz\r\n"),
    "cut": lambda: (STREAM, b"ff\r\ndata: {"),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_that_is_none_ends(target: Target, hostile: HostileWorker, name: str) -> None:
    hostile.answer = STREAMS[name]()
    status, _, told = await target.chat(stream=True)
    assert status in {200, 502, 503}
    assert len(told) < 10 * MIB


async def test_headers_that_are_no_answers_are_not_passed_on(target: Target, hostile: HostileWorker) -> None:
    lines = {
        "Set-Cookie": "session=stolen",
        "Location": "http://evil/",
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Allow-Credentials": "true",
        "X-Cachefleet-Decision": "forged",
        "X-Cachefleet-Worker": "forged",
        "Server": "uvicorn",
        "X-Kept": "yes",
    }
    hostile.answer = whole(ANSWER, "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode())
    status, headers, _ = await target.chat()
    assert status == 200
    assert "forged" not in str(headers)
    assert not [name for name in headers if name in {"set-cookie", "location"} or name.startswith("access-control")]


ABSURD: tuple[Any, ...] = (-5, 10**30, 1.5, "7", True, None, [], {}, -(2**63), 2**63)


@pytest.mark.parametrize("number", ABSURD, ids=repr)
@pytest.mark.parametrize("member", ["prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"])
async def test_absurd_usage_settles_the_account(
    target: Target, hostile: HostileWorker, member: str, number: Any
) -> None:
    key = await target.tenant("acme", tokensPerMinute=1_000_000)
    answer = json.loads(ANSWER)
    told = answer["usage"] if member != "cached_tokens" else answer["usage"].setdefault("prompt_tokens_details", {})
    told[member] = number
    hostile.answer = whole(json.dumps(answer).encode())
    for _ in range(3):
        assert (await target.chat(key=key))[0] == 200
    page = exposition(target.plane.plane.metrics.registry)[0].decode()
    samples = [line for line in page.splitlines() if line.startswith("cachefleet_tenant_") and "acme" in line]
    assert samples
    assert all(0 <= float(line.split()[-1]) < 1e12 for line in samples)
