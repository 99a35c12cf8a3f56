"""With no feature used an engine with the plugin answers byte for byte as stock vLLM does.

The first test of the stock engine records; the same requests to the engine with the plugin must give the same bytes,
apart from what names one answer: its id, its time, the server's fingerprint. Each starts from an empty cache. What
stock vLLM answers to anybody is asked for with the key, which the plugin wants there (test_plugin_routes.py).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from cachefleet_core.continuation import REF_MEMBER
from cachefleet_worker.plugin.access_guard import OPEN_PATHS
from e2e.engine.message_start import stream_as_stock
from e2e.engine.requests import ANSWERED, CHAT, COMPLETION, IDS, REFUSED, WARM, Sent
from e2e.engine.side import Side
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm

NAMES: Final = re.compile(
    rb'"(id|item_id|request_id|created|created_at|system_fingerprint|endpoint|replay_endpoint)":\s*("[^"]*"|\d+|null)'
)
HEADERS: Final = {"Content-Type", "Content-Length", "Transfer-Encoding", "Cache-Control", "Connection"}

Answer = tuple[int, list[tuple[str, str]], bytes]


def _is_steady(sent: Sent) -> bool:
    """Greedy; what is drawn by chance, and streams in pieces of chance, cannot be compared byte for byte."""
    body = sent.body if isinstance(sent.body, dict) else {}
    sampling = body.get("sampling_params", body)
    warm = sampling.get("temperature") == WARM["temperature"] or ("token_ids" in body and "temperature" not in sampling)
    several = isinstance(body.get("prompt"), list) and any(isinstance(part, (str, list)) for part in body["prompt"])
    return not warm and sampling.get("n", 1) == 1 and not (several and body.get("stream"))


REQUESTS: Final = [
    *(replace(sent, anonymous=sent.path in OPEN_PATHS) for sent in ANSWERED if _is_steady(sent)),
    *REFUSED,
    Sent(COMPLETION, {"prompt": IDS, "max_tokens": 5, "temperature": 0, "logprobs": 3, "stream": True}),
    Sent(COMPLETION, {"prompt": "a b c", "max_tokens": 5, "temperature": 0, "vllm_xargs": {"session_id": "s"}}),
    Sent(COMPLETION, {"prompt": "a b c", "max_tokens": 5, "temperature": 0, "return_prompt_cache_ref": True}),
    Sent(CHAT, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "temperature": 0, REF_MEMBER: {}}),
]
NAMED: Final = {f"{number} {sent}": sent for number, sent in enumerate(REQUESTS)}
RECORDED: Final = 5
ATTEMPTS: Final = 50
recorded: dict[str, Answer] = {}


async def answers(server: VllmServer) -> dict[str, Answer]:
    """To compare with: of a stream the one in most pieces, since a busy server may put two steps into one."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:
        side = Side(server.url, "", "", server.headers, session)
        return {
            name: max([await _answer(side, sent) for _ in range(RECORDED if _streams(sent) else 1)], key=_pieces)
            for name, sent in NAMED.items()
        }


async def differing(server: VllmServer, recorded: dict[str, Answer]) -> dict[str, tuple[Answer, Answer]]:
    """Recorded answers that do not come again, with what came; a stream is asked for until it does."""
    found = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:
        side = Side(server.url, "", "", server.headers, session)
        for name, sent in NAMED.items():
            for _ in range(ATTEMPTS if _streams(sent) else 1):
                if (answer := await _answer(side, sent)) == recorded[name]:
                    break
            else:
                found[name] = (recorded[name], answer)
    return found


def _streams(sent: Sent) -> bool:
    return isinstance(sent.body, dict) and bool(sent.body.get("stream"))


def _pieces(answer: Answer) -> int:
    return answer[2].count(b"\n")


async def _answer(side: Side, sent: Sent) -> Answer:
    await side.reset()
    data = sent.body if isinstance(sent.body, bytes) else None if sent.body is None else json.dumps(sent.body).encode()
    headers = {"Content-Type": "application/json", **({} if sent.anonymous else side.headers)}
    async with side.session.request(sent.method, side.url + sent.path, data=data, headers=headers) as response:
        content = await response.read()
        shown = sorted((name, value) for name, value in response.headers.items() if name in HEADERS)
        if content.startswith(b"data: "):
            content = _merged(content)
        content = stream_as_stock(content)
        content = NAMES.sub(rb'"\1":"*"', content)
        return response.status, [pair for pair in shown if pair[0] != "Content-Length"], content


def _merged(stream: bytes) -> bytes:
    """A stream's events, all their text and all their ids: a busy server may put the tokens of two steps into one."""
    shapes: list[bytes] = []
    said: dict[str, list[Any]] = {"text": [], "ids": []}
    for event in filter(None, stream.split(b"\n\n")):
        data = event.removeprefix(b"data: ")
        shape = data if data == b"[DONE]" else json.dumps(_shape(json.loads(data), said)).encode()
        if not shapes or shapes[-1] != shape:
            shapes.append(shape)
    return b"\n".join([*shapes, json.dumps(said).encode()])


def _shape(chunk: Any, said: dict[str, list[Any]]) -> Any:
    """A chunk without what it says, which is added to ``said``, character by character."""
    choices = chunk.get("choices") or []
    for choice in choices:
        said["text"] += choice.pop("text", "")
        said["text"] += (choice.get("delta") or {}).pop("content", None) or ""
        said["ids"] += choice.pop("token_ids", None) or ()
        choice.pop("logprobs", None)
    if choices and chunk.get("usage"):
        chunk["usage"] = sorted(chunk["usage"])
    return chunk


async def test_stock_vllm_is_steady_by_itself(vllm_server: VllmServer) -> None:
    recorded.update(await answers(vllm_server))
    assert await differing(vllm_server, recorded) == {}


@pytest.fixture
async def stock(tiny_model: Path, tmp_path: Path) -> dict[str, Answer]:
    """What the test before has recorded, or, where it did not run, an engine of our own."""
    if not recorded:
        with running_vllm(VllmOptions(), tiny_model, tmp_path / "vllm.log") as server:
            recorded.update(await answers(server))
    return recorded


@pytest.mark.parametrize("vllm_server", [VllmOptions(plugin=True)], indirect=True)
@pytest.mark.requirement("B13")
async def test_the_plugin_changes_no_byte(vllm_server: VllmServer, stock: dict[str, Answer]) -> None:
    assert len(stock) == len(REQUESTS) > 50
    assert await differing(vllm_server, stock) == {}
