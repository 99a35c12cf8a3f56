"""A messages stream's first chunk gets the counts of the engine's first output, and nothing else changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.usage.message_start import FEATURE, patch, with_counts

FIRST = 'data: {"id":"c","choices":[],"usage":{"prompt_tokens":64,"completion_tokens":0}}\n\n'


class Chats:
    """As vLLM's serving of chats streams."""

    enable_prompt_tokens_details = True

    def __init__(self) -> None:
        self.ended = False

    async def chat_completion_stream_generator(
        self, request: Any, result_generator: AsyncIterator[Any], request_id: str
    ) -> AsyncIterator[str]:
        begun = False
        try:
            async for output in result_generator:
                if not begun:
                    yield FIRST
                begun = True
                yield f"data: {output.text}\n\n"
            yield f"data: {request_id}\n\n"
        finally:
            self.ended = True


def serving(faults: Faults) -> type[Chats]:
    made = type("Messages", (Chats,), {})
    patch(made, faults)
    return made


async def outputs(*counts: Any) -> AsyncIterator[Any]:
    for number, (cached, created) in enumerate(counts):
        yield SimpleNamespace(text=number, num_cached_tokens=cached, num_cache_creation_tokens=created)


async def streamed(chats: Chats, *counts: Any) -> list[str]:
    return [chunk async for chunk in chats.chat_completion_stream_generator(None, outputs(*counts), request_id="r")]


async def test_the_first_chunk_gets_the_first_outputs_counts() -> None:
    first, *rest = await streamed(serving(Faults(Capabilities()))(), (48, 16), (None, None))
    told = json.loads(first.removeprefix("data: "))
    assert first.endswith("\n\n")
    assert told.pop("usage") == {
        "prompt_tokens": 64,
        "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 48, "created_cache_tokens": 16},
    }
    assert told == {"id": "c", "choices": []}
    assert rest == ["data: 0\n\n", "data: 1\n\n", "data: r\n\n"]


class Usage(BaseModel):
    prompt_tokens: int = 64
    prompt_tokens_details: dict[str, int] | None = None


class Chunk(BaseModel):
    usage: Usage | None = None


class Objects(Chats):
    """As vLLM's serving of chats streams where messages are made from its chunks as objects."""

    async def chat_completion_stream_generator_raw(
        self, request: Any, result_generator: AsyncIterator[Any], request_id: str
    ) -> AsyncIterator[Chunk]:
        async for _ in self.chat_completion_stream_generator(request, result_generator, request_id):
            yield Chunk(usage=Usage())


async def test_chunks_that_are_objects_get_them_too() -> None:
    patch(made := type("Messages", (Objects,), {}), Faults(Capabilities()))
    stream = made().chat_completion_stream_generator_raw(None, outputs((48, 16), (1, 1)), request_id="r")
    first, *rest = [chunk async for chunk in stream]
    assert first.usage.prompt_tokens_details == {"cached_tokens": 48, "created_cache_tokens": 16}
    assert rest == [Chunk(usage=Usage())] * 3
    assert with_counts(Chunk(), SimpleNamespace(num_cached_tokens=5)) == Chunk()


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_vllms_own_chunks_take_them() -> None:
    from vllm.entrypoints.anthropic.serving import _build_anthropic_usage  # noqa: PLC0415 - only where vLLM is
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionStreamResponse  # noqa: PLC0415
    from vllm.entrypoints.serve.engine.protocol import UsageInfo  # noqa: PLC0415

    chunk = ChatCompletionStreamResponse(choices=[], model="m", usage=UsageInfo(prompt_tokens=64, total_tokens=64))
    told = with_counts(chunk, SimpleNamespace(num_cached_tokens=48, num_cache_creation_tokens=16))
    usage = _build_anthropic_usage(told.usage)
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (0, 48)


async def test_chats_and_streams_without_details_or_after_a_fault_are_as_they_were() -> None:
    faults = Faults(Capabilities())
    hooked = serving(faults)()
    hooked.enable_prompt_tokens_details = False
    assert (await streamed(hooked, (48, 16)))[0] == FIRST
    assert (await streamed(Chats(), (48, 16)))[0] == FIRST
    hooked.enable_prompt_tokens_details = True
    faults.off(FEATURE, "")
    assert (await streamed(hooked, (48, 16)))[0] == FIRST


async def test_a_stream_that_is_left_ends_below() -> None:
    chats = serving(Faults(Capabilities()))()
    stream = chats.chat_completion_stream_generator(None, outputs((0, 64)), request_id="r")
    await anext(stream)
    assert not chats.ended
    await stream.aclose()  # type: ignore[attr-defined]
    assert chats.ended


@pytest.mark.parametrize("chunk", [FIRST, "data: [DONE]\n\n", ": ping\n\n", 'data: {"usage":null}\n\n'])
def test_what_has_no_usage_or_no_counts_is_unchanged(chunk: str) -> None:
    assert with_counts(chunk, SimpleNamespace(num_cached_tokens=None)) == chunk
    if chunk is not FIRST and "DONE" not in chunk:
        assert with_counts(chunk, SimpleNamespace(num_cached_tokens=5)) == chunk


async def test_what_cannot_be_read_costs_the_counts_alone() -> None:
    faults = Faults(Capabilities())

    class Odd(Chats):
        async def chat_completion_stream_generator(self, *_: Any, **__: Any) -> AsyncIterator[str]:
            yield "data: [DONE]\n\n"

    patch(Odd, faults)
    chunks = [chunk async for chunk in Odd().chat_completion_stream_generator(None, outputs((1, 1)))]
    assert chunks == ["data: [DONE]\n\n"]
    assert faults.counts[FEATURE] == 0  # no output has come
