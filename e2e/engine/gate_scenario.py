"""The four requests of the proposal for a cache-hit threshold, on a running engine with the plugin, any version.

The pool's threshold is 0.8. (1) A conversation is warmed with its own threshold 0. (2) One that shares too little of it
is refused by its own 0.33. (3) One that shares more runs. (4) One without a threshold of its own is refused by the
pool's. As chat and as plain completion, streamed and not.
"""

from __future__ import annotations

import json
import secrets
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from e2e.engine.vllm import VllmServer

CHAT: Final = "/v1/chat/completions"
COMPLETION: Final = "/v1/completions"
LOG_SECONDS: Final = 60.0
BLOCK: Final = 32


@dataclass(frozen=True, slots=True)
class Answer:
    """What came, streamed or not: one choice, the usage, and the chunks of a stream."""

    text: str
    reason: str
    usage: dict[str, Any]
    chunks: list[dict[str, Any]]
    details: dict[str, Any] | None
    request_id: str


def check_gate_scenario(server: VllmServer) -> None:
    """Run all of it. AssertionError where the engine does otherwise; the pool's threshold is 0 again afterwards."""
    with threshold(server, 0.8):
        for path in (CHAT, COMPLETION):
            for stream in (False, True):
                _check(server, path, stream=stream)


@contextmanager
def threshold(server: VllmServer, value: float, **policy: Any) -> Iterator[None]:
    """A policy with this threshold in force, and one that asks for nothing afterwards."""
    put_policy(server, threshold=value, **policy)
    try:
        yield
    finally:
        put_policy(server)


def put_policy(server: VllmServer, **policy: Any) -> dict[str, Any]:
    """Put a policy in force, whatever was before; what the engine answers."""
    body = {"pool": "test", "uid": secrets.token_hex(8), "generation": 1, **policy}
    answer: dict[str, Any] = json.loads(_send(server, "/v1/fleet/policy", body, "PUT"))
    return answer


def _check(server: VllmServer, path: str, *, stream: bool) -> None:
    mark = secrets.token_hex(6)
    warm = ask(server, path, mark, "base", cache_hit_threshold=0, stream=stream)
    assert (warm.reason, warm.usage["completion_tokens"]) == ("length", 4)
    _check_refused(server, path, ask(server, path, mark, "other", cache_hit_threshold=0.33, stream=stream), "request")
    near = ask(server, path, mark, "near", cache_hit_threshold=0.33, stream=stream)
    assert (near.reason, near.usage["completion_tokens"]) == ("length", 4)
    shared = near.usage["prompt_tokens_details"]["cached_tokens"]
    assert 0.33 <= shared / near.usage["prompt_tokens"] < 0.8, near.usage
    _check_refused(server, path, ask(server, path, mark, "middle", stream=stream), "global")


def _check_refused(server: VllmServer, path: str, answer: Answer, source: str) -> None:
    assert (answer.reason, answer.text) == ("cache_threshold", ""), answer
    needed = answer.usage["prompt_tokens"]
    assert answer.usage["completion_tokens"] == 0
    assert answer.usage["total_tokens"] == needed > 0
    limit = 0.33 if source == "request" else 0.8
    line = _logged(server, answer.request_id)
    hit = float(line.partition("cache hit rate ")[2].partition(" ")[0])
    assert f"rejected: cache hit rate {hit:.2f} < threshold {limit:.2f} ({source})" in line
    assert 0 < hit < limit
    if answer.details is not None:
        tokens = answer.details["hit_tokens"]
        expected = {"hit_tokens": tokens, "prompt_tokens": needed, "threshold": limit, "preempted": 0}
        assert answer.details == expected
        assert (tokens % BLOCK, f"{tokens / needed:.2f}") == (0, f"{hit:.2f}")
        return
    choices = [chunk["choices"] for chunk in answer.chunks]
    if path == CHAT:
        assert choices.pop(0)[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice[0]["finish_reason"] for choice in choices[:1]] == ["cache_threshold"]
    assert choices[1:] == [[]], "one chunk with the reason, one with the usage"


def ask(server: VllmServer, path: str, mark: str, which: str, **more: Any) -> Answer:
    """One of the four requests; those with one mark share their beginning."""
    body = {"model": "tiny", "max_tokens": 4, "temperature": 0, "ignore_eos": True, **more}
    body |= _chat(mark, which) if path == CHAT else _completion(mark, which)
    if body.get("stream"):
        body["stream_options"] = {"include_usage": True}
        return _streamed(_send(server, path, body))
    whole = json.loads(_send(server, path, body))
    (choice,) = whole["choices"]
    text = choice["message"]["content"] or "" if path == CHAT else choice["text"]
    details = (whole.get("kv_transfer_params") or {}).get("cache_threshold")
    return Answer(text, choice["finish_reason"], whole["usage"], [], details, whole["id"])


def _completion(mark: str, which: str) -> dict[str, Any]:
    common = _ids(mark, 119)
    tails = {"base": [], "other": _ids(mark + "o", 230), "near": _ids(mark + "n", 68), "middle": _ids(mark + "m", 109)}
    return {"prompt": common + tails[which]}


def _chat(mark: str, which: str) -> dict[str, Any]:
    rules = f"{mark}. " + "You answer questions about the weather, the sea and the mountains. " * 6
    lengths = {"base": 1, "other": 27, "near": 9, "middle": 15}
    question = f"{which}: " + "What is the weather like tomorrow? " * lengths[which]
    return {"messages": [{"role": "system", "content": rules}, {"role": "user", "content": question}]}


def _ids(mark: str, count: int) -> list[int]:
    seed = int.from_bytes(mark.encode()[-6:], "big")
    return [300 + (seed + at * 7919 + at * at * (1 + seed % 97)) % 600 for at in range(count)]


def _streamed(body: bytes) -> Answer:
    events = [event.removeprefix("data: ") for event in body.decode().split("\n\n") if event]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert not any("error" in chunk for chunk in chunks), chunks
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    assert len(reasons) == 1, chunks
    return Answer(text, reasons[0], chunks[-1]["usage"], chunks, None, chunks[0]["id"])


def _logged(server: VllmServer, request_id: str) -> str:
    """The line in the engine's log that says why a request was refused."""
    deadline = time.monotonic() + LOG_SECONDS
    while True:
        lines = [line for line in server.log.read_text(errors="replace").splitlines() if "rejected: " in line]
        found = [line for line in lines if f"Request {request_id}" in line]
        if found:
            return found[0]
        assert time.monotonic() < deadline, f"no refusal of {request_id} in the log"
        time.sleep(0.1)


def _send(server: VllmServer, path: str, body: Any, method: str = "POST") -> bytes:
    headers = {"Content-Type": "application/json", **server.headers}
    data = json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data=data, headers=headers, method=method)  # noqa: S310 - ours
    with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310 - as above
        return bytes(answer.read())
