"""A worker's counts of tokens, whatever it writes, and what a tenant's account makes of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.send.answers.usage import Usage, read_usage, within
from cachefleet_controlplane.store.tenant_records import TenantRecord, UsageRecord
from cachefleet_core.fleet_status.tenant_limits import Limit
from tests.controlplane.gateway.harness import Known, chat, front
from tests.controlplane.gateway.tenancies import ACME, ask, directory
from tests.controlplane.waiting import until
from tests.reference.usage import usage_in

LONGEST = 4096
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(2**64) | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=9), inner, max_size=2),
)
NAMES = ("prompt_tokens", "completion_tokens", "prompt_tokens_details")
told = (
    anything
    | st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, anything))
    | st.fixed_dictionaries(
        {"prompt_tokens": anything, "prompt_tokens_details": st.fixed_dictionaries({"cached_tokens": anything})}
    )
)


@given(told=told, prompts=st.integers(1, 4), choices=st.integers(1, 4))
def test_nothing_is_below_0_or_above_what_was_possible(told: object, prompts: int, choices: int) -> None:
    body = json.dumps({"usage": told}).encode()
    found = read_usage(body, Endpoint.CHAT)
    assert found == usage_in(body)
    usage = within(found, longest=LONGEST, prompts=prompts, choices=choices)
    if usage is not None:
        assert 0 <= usage.prompt_tokens <= LONGEST * prompts
        assert 0 <= (usage.completion_tokens or 0) <= LONGEST * prompts * choices
        assert 0 <= (usage.cached_tokens or 0) <= usage.prompt_tokens


@given(st.integers(0, LONGEST), st.integers(0, LONGEST), st.integers(0, LONGEST))
def test_what_is_possible_stays(prompt: int, completion: int, cached: int) -> None:
    cached = min(cached, prompt)
    told = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    usage = read_usage(json.dumps({"usage": told}).encode(), Endpoint.CHAT)
    assert within(usage, longest=LONGEST) == Usage(prompt, completion, cached)


@pytest.mark.parametrize("bad", ["-5", "1e3", '"7"', "true", "null", "[]", "1" + "0" * 30])
def test_one_bad_count_does_not_cost_the_others(bad: str) -> None:
    usage = read_usage(b'{"usage":{"prompt_tokens":7,"completion_tokens":%s}}' % bad.encode(), Endpoint.CHAT)
    assert usage is not None
    assert usage.prompt_tokens == 7
    assert usage.completion_tokens in {None, 0, 2**64 - 1}


def test_an_answer_may_be_nested_deeply() -> None:
    """A tool's input is what the model has written."""
    deep = b"[" * 900 + b"]" * 900
    body = b'{"content":%s,"usage":{"input_tokens":9,"output_tokens":4}}' % deep
    assert read_usage(body, Endpoint.MESSAGES) == Usage(9, 4)


class Absurd:
    """A worker with a usage of its own."""

    def __init__(self, usage: Any) -> None:
        self.url = ""
        self._usage = usage

    async def render(self, _: web.Request) -> web.Response:
        return web.json_response({"token_ids": list(range(1, 101))})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        choice = {"index": 0, "finish_reason": "stop"}
        if not body.get("stream"):
            said = choice | {"message": {"role": "assistant", "content": "a"}}
            return web.json_response({"id": "c", "choices": [said], "usage": self._usage})
        events = [{"id": "c", "choices": [choice | {"delta": {"content": "a"}}]}, {"choices": [], "usage": self._usage}]
        lines = [json.dumps(event, separators=(",", ":")) for event in events]
        text = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
        return web.Response(text=text, content_type="text/event-stream")


@asynccontextmanager
async def absurd(usage: Any) -> AsyncIterator[Absurd]:
    worker, app = Absurd(usage), web.Application()
    app.router.add_post("/v1/chat/completions/render", worker.render)
    app.router.add_post("/v1/chat/completions", worker.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    worker.url = site.name
    yield worker
    await runner.cleanup()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": -5, "completion_tokens": -7}, (0, 0)),
        ({"prompt_tokens": 10**30, "completion_tokens": 10**30}, (LONGEST, LONGEST)),
        ({"prompt_tokens": 10, "completion_tokens": "5"}, (10, 0)),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 10**30}}, (10, 0)),
        ({"prompt_tokens": 2.5, "completion_tokens": True}, (0, 0)),
        ([], (100, 0)),
        (None, (100, 0)),
    ],
    ids=str,
)
async def test_the_account_of_an_answer_is_settled_whatever_its_worker_says(
    usage: Any, counts: tuple[int, int], *, stream: bool
) -> None:
    """Without any counts it is charged for the prompt as it was rendered and, of a stream, for what came."""
    if not usage:
        counts = (counts[0], int(stream))
    records: list[UsageRecord] = []
    limited = TenantRecord(name=ACME.name, tokens_per_minute=1_000_000)
    async with absurd(usage) as worker, front([worker], known=Known(directory(limited)), used=records.append) as gate:
        assert (await ask(gate, ACME, **chat("x"), stream=stream))[0] == 200
        await until(lambda: bool(records))
        (record,) = records
        assert (record.prompt_tokens, record.completion_tokens) == counts
        assert 0 <= record.cached_tokens <= record.prompt_tokens
        loads = gate.gateway._admission._loads.values()
        spent = [load.buckets[Limit.TOKENS_PER_MINUTE].total for load in loads]
        assert spent == [total] if (total := sum(counts) - record.cached_tokens) else not spent
