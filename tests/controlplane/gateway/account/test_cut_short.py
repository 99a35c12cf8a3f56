"""Answers that end before their usage: what was made is accounted for, in all APIs, and who ended them is recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.store.tenant_records import TenantRecord, UsageRecord
from cachefleet_core.report_frames import Capability
from tests.controlplane.gateway.harness import MODEL, Front, Known, chat, engine, front
from tests.controlplane.gateway.responses_socket.sockets import connected, create
from tests.controlplane.gateway.retry.test_failover import Breaks, Scripted, Stalls, serving
from tests.controlplane.gateway.retry.test_resume import COMPLETION, USAGE, told
from tests.controlplane.gateway.tenancies import ACME, KEYS, ask, directory, salts
from tests.controlplane.waiting import until
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.usefixtures("hurried")
PROMPT = [5, 6, 7]


def event(name: str = "", **members: Any) -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(members, separators=(",", ":")).encode() + b"\n\n"


def choice(text: str, ids: list[int] | None, index: int = 0, **more: Any) -> bytes:
    said = {"index": index, "delta": {"content": text}, "finish_reason": None} | more
    return event(id="c", choices=[said | ({} if ids is None else {"token_ids": ids})])


def role(index: int = 0) -> bytes:
    first = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    return event(id="c", choices=[first], prompt_token_ids=PROMPT)


def text(text: str, ids: list[int], index: int = 0, prompt: list[int] | None = None) -> bytes:
    said = {"index": index, "text": text, "finish_reason": None, "prompt_token_ids": prompt, "token_ids": ids}
    return event(id="c", choices=[said])


def block(kind: str, **delta: Any) -> bytes:
    return event("content_block_delta", type="content_block_delta", index=0, delta={"type": kind, **delta})


def delta(kind: str) -> bytes:
    return event(f"response.{kind}.delta", type=f"response.{kind}.delta", delta="a")


def begins(**usage: int) -> bytes:
    return event("message_start", type="message_start", message={"id": "m", "usage": usage})


CHAT = [role(), choice("a", [1]), choice("b", [2, 3]), choice("", [])]
TWO = [role(0), role(1), choice("a", [1]), choice("b", [2, 3], 1)]
ECHO = [choice("q", [*PROMPT, 1]), choice("z", [2])]
SILENT = [choice("", None), choice("a", None), choice('"content":"', None)]
PAIR = [text("a", [1], 0, PROMPT), text("b", [2], 1, PROMPT), text("c", [3], 2, [8]), text("d", [4], 3, [8])]
CREATED = event("response.created", type="response.created", response={"id": "r", "usage": None})
RESPONSE = [
    CREATED,
    delta("output_text"),
    delta("reasoning_text"),
    event("response.output_text.done", type="response.output_text.done"),
]
SIGNED = [block("thinking_delta", thinking="a"), block("signature_delta", signature="x"), block("text_delta", text="b")]
MESSAGE = [begins(input_tokens=9, cache_read_input_tokens=80, output_tokens=0), *SIGNED]
LEFT: dict[str, tuple[str, dict[str, Any], list[bytes], bytes, tuple[int | None, int]]] = {
    "chat": (Endpoint.CHAT, {}, CHAT, b'"b"', (3, 3)),
    "choices": (Endpoint.CHAT, {"n": 2}, TWO, b'"b"', (3, 3)),
    "no ids": (Endpoint.CHAT, {"echo": False}, SILENT, b"content\\", (None, 2)),
    "echo": (Endpoint.CHAT, {"echo": True}, SILENT, b"content\\", (None, 1)),
    "echo with ids": (Endpoint.CHAT, {"echo": True, "return_token_ids": True}, ECHO, b'"z"', (None, 1)),
    "prompts": (Endpoint.COMPLETIONS, {"prompt": ["x", "y"], "n": 2}, PAIR, b'"d"', (4, 4)),
    "response": (Endpoint.RESPONSES, {"input": "x"}, RESPONSE, b"output_text.done", (None, 2)),
    "message": (Endpoint.MESSAGES, {"max_tokens": 4}, MESSAGE, b'"b"', (89, 2)),
}
"""What is asked, the worker's events, what of the last one the client gets; the tokens of prompt (None: as predicted)
and answer that these tell.
"""


class Accounts:
    """A gateway before one worker, and what it accounts."""

    def __init__(self, gate: Front, used: list[UsageRecord]) -> None:
        self.gate = gate
        self.used = used

    async def leave(self, endpoint: str, body: dict[str, Any], *, after: bytes = b"") -> None:
        """Ask, and go away once ``after`` has come; b"": at once."""
        async with self.gate.http.post(self.gate.url + endpoint, json=body, headers=_key()) as answer:
            heard = b""
            while after not in heard and not answer.content.at_eof():
                heard += await answer.content.readany()
            answer.close()

    async def last(self) -> tuple[UsageRecord, DecisionRecord]:
        await until(lambda: bool(self.used) and bool(self.gate.records))
        return self.used[-1], self.gate.records[-1]


def _key() -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[ACME.name]}"}


@asynccontextmanager
async def accounts(worker: Scripted | FakeEngine, tenant: TenantRecord = ACME) -> AsyncIterator[Accounts]:
    used: list[UsageRecord] = []
    known = Known(directory(tenant))
    async with front([worker], idle_seconds=30, known=known, used=used.append) as gate:
        yield Accounts(gate, used)


@pytest.mark.parametrize("api", LEFT)
async def test_a_stream_that_its_client_leaves_costs_what_was_made(api: str) -> None:
    endpoint, fields, events, last, (prompt, made) = LEFT[api]
    async with serving(Stalls(first=True, said=b"".join(events))) as worker, accounts(worker) as seen:
        asked = chat("x " * 40) | {"stream": True} | fields
        await seen.leave(endpoint, asked, after=last)
        used, record = await seen.last()
    assert used.completion_tokens == record.completion_tokens == made
    assert used.prompt_tokens == (record.prompt_tokens if prompt is None else prompt)
    assert used.cached_tokens == (80 if api == "message" else 0)
    assert (record.ended_by, record.status, record.attempts[-1].outcome) == ("client", 200, "cancelled")


async def test_a_websocket_that_closes_costs_what_was_made() -> None:
    async with serving(Stalls(first=True, said=b"".join(RESPONSE))) as worker, accounts(worker) as seen:
        async with connected(seen.gate, **_key()) as socket:
            await socket.send(create(max_output_tokens=200))
            while "output_text.done" not in str(await socket.recv()):
                pass
        used, record = await seen.last()
    assert (used.completion_tokens, record.ended_by) == (2, "client")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_who_does_not_wait_for_an_answer_pays_its_prompt(*, stream: bool) -> None:
    async with engine(prefill_tokens_per_second=0.01) as worker, accounts(worker) as seen:
        asking = asyncio.create_task(ask(seen.gate, ACME, stream=stream))
        await until(lambda: bool(salts(worker)))
        worker.hang()
        asking.cancel()
        used, record = await seen.last()
    assert used.prompt_tokens == record.prompt_tokens > 0
    assert (used.completion_tokens, record.completion_tokens, record.ended_by) == (0, None, "client")


async def test_what_was_made_for_who_left_counts_against_the_limit() -> None:
    limited = TenantRecord(name=ACME.name, tokens_per_minute=300)
    slow = {"inter_token_seconds": 0.01, "natural_tokens": 2000}
    async with engine(**slow) as worker, accounts(worker, limited) as seen:
        asked = {"model": MODEL, "messages": chat("x")["messages"], "max_tokens": 2000, "stream": True, "n": 2}
        status = 200
        while status == 200:
            assert len(seen.used) < 30, "the limit never holds"
            before = len(seen.used)
            async with seen.gate.http.post(seen.gate.url + Endpoint.CHAT, json=asked, headers=_key()) as answer:
                for _ in range(100):
                    await answer.content.readuntil(b"\n\n")
                answer.close()
                status = answer.status
            await until(lambda before=before, left=status == 429: left or len(seen.used) > before)  # type: ignore[misc]
        async with seen.gate.http.get(worker.url + "/metrics") as told_metrics:
            text = await told_metrics.text()
    (made,) = [float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:generation_tokens_total")]
    assert len(seen.used) > 1
    assert 0.8 * made <= sum(used.completion_tokens for used in seen.used) <= made


async def test_a_worker_that_breaks_off_is_who_ended_it() -> None:
    async with serving(Breaks()) as worker, accounts(worker) as seen:
        await ask(seen.gate, ACME, stream=True)
        used, record = await seen.last()
    assert (used.completion_tokens, record.ended_by, record.attempts[-1].outcome) == (1, "worker", "lost")


class FailsLate(Stalls):
    """Sends an error once it has begun."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(self._said)
        await asyncio.sleep(1)  # of the loop's time, so that it comes for itself
        await response.write(b'data: {"error":{"message":"dead","type":"InternalServerError","code":500}}\n\n')
        return response


async def test_an_error_event_of_the_worker_ends_its_answer() -> None:
    worker = FailsLate(first=True, said=b"".join([role(), choice("a", [1]), choice("b", [2])]))
    async with serving(worker), front([worker]) as gate:
        _, _, body = await gate.chat("x", stream=True, n=2)
        await until(lambda: bool(gate.records))
    ended = gate.records[-1]
    assert b"dead" in body
    assert (ended.ended_by, ended.completion_tokens, ended.attempts[-1].outcome) == ("worker", 2, "error_event")


async def test_a_stop_string_that_the_gateway_finds_is_its_own_end() -> None:
    async with engine(plugin=True) as one, engine(plugin=True) as two, front([one, two]) as gate:
        text = told((await gate.post(Endpoint.COMPLETIONS, COMPLETION))[2])["text"]
        stop = text[len(text) // 2 - 2 : len(text) // 2 + 2]
        for after in range(1, 11):
            for worker in (one, two):
                worker.worker.scheduler.hand_backs.clear()
                worker.hand_back(after)
            await gate.post(Endpoint.COMPLETIONS, COMPLETION | USAGE | {"stop": [stop]})
    stopped = [record for record in gate.records if record.attempts[-1].outcome == "stopped"]
    assert stopped, "no seam was within the stop string"
    for record in stopped:
        assert (record.ended_by, record.status) == ("gateway", 200)
        assert 0 < (record.completion_tokens or 0) <= 12


async def test_a_whole_answer_was_ended_by_nobody() -> None:
    async with engine() as worker, accounts(worker) as seen:
        for stream in (False, True):
            await ask(seen.gate, ACME, stream=stream)
        await until(lambda: len(seen.gate.records) == 2)
    assert [record.ended_by for record in seen.gate.records] == [None, None]


LEFT_FEATURE = Capability(feature="left_answers", mode="on")
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (Endpoint.CHAT, chat("the same words " * 20)),
    "choices": (Endpoint.CHAT, chat("x") | {"n": 2}),
    "completion": (Endpoint.COMPLETIONS, {"model": MODEL, "prompt": ["some words " * 9, "other words " * 9]}),
    "response": (Endpoint.RESPONSES, {"model": MODEL, "input": "x", "max_output_tokens": 2000}),
    "message": (Endpoint.MESSAGES, chat("x")),
}


@pytest.mark.parametrize("api", WHOLE)
async def test_what_was_made_of_a_whole_answer_is_asked_of_its_worker(api: str) -> None:
    endpoint, body = WHOLE[api]
    slow = {"inter_token_seconds": 0.02, "natural_tokens": 3000, "plugin": True, "num_blocks": 2048}
    async with engine(**slow) as worker, accounts(worker) as seen:
        seen.gate.report(0, said={"capabilities": (LEFT_FEATURE,)})
        body = body if endpoint is Endpoint.RESPONSES else body | {"max_tokens": 2000}
        asking = asyncio.create_task(seen.gate.http.post(seen.gate.url + endpoint, json=body, headers=_key()))
        running = worker.worker.scheduler.running
        await until(lambda: any(len(sequence.output) >= 10 for sequence in running))
        sequences = list(running)
        asking.cancel()
        used, record = await seen.last()
        made = sum(len(sequence.output) for sequence in sequences)
    assert used.completion_tokens == record.completion_tokens
    assert 10 <= used.completion_tokens <= made
    assert used.completion_tokens >= made - 2 * len(sequences)
    prompts = {tuple(sequence.tokens[: sequence.prompt_tokens]) for sequence in sequences}
    assert used.prompt_tokens == sum(map(len, prompts))
    assert (record.ended_by, record.cached_tokens) == ("client", 0)


async def test_no_client_names_its_request_to_a_worker() -> None:
    async with engine(plugin=True) as worker, accounts(worker) as seen:
        named = {"x-cachefleet-account": "mine"}
        await seen.gate.post(Endpoint.CHAT, chat("x"), **_key(), **named)
        seen.gate.report(0, said={"capabilities": (LEFT_FEATURE,)})
        await seen.gate.post(Endpoint.CHAT, chat("x"), **_key(), **named)
        sent = [
            request.headers.get("x-cachefleet-account") for request in worker.requests if request.path == Endpoint.CHAT
        ]
    assert sent == [None, seen.gate.records[-1].id]
