"""The hook in vLLM's messages API: ``message_start`` tells how much of the prompt came from cache, as at the end.

Anthropic's clients read the prompt's counts from the first event of a stream. vLLM has all of the prompt as
``input_tokens`` there and tells of the cache in ``message_delta`` alone, although it knows by then: the event is made
from a chat's first chunk, whose usage lacks these counts. They are added to that chunk.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec

from cachefleet_worker.plugin.compat import unmet
from cachefleet_worker.plugin.method_hooks import wrap_method
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.plugin_process import Process, engineless

FEATURE: Final = "message_start"
_STOCK: Final = "cachefleet_unhooked"
_DATA: Final = "data: "
_CHUNKS: Final = "chat_completion_stream_generator"
_OBJECTS: Final = f"{_CHUNKS}_raw"
"""The method whose chunks messages are made from, where there is one that does not write them as text."""
_COUNTS: Final = {"cached_tokens": "num_cached_tokens", "created_cache_tokens": "num_cache_creation_tokens"}
"""Counts of a prompt's tokens by the names that answers give them, and as an engine's output has them."""

Next = Callable[[], Awaitable[Any]]


def install(process: Process, *, has_engine: bool) -> None:
    """Hook vLLM's messages API in this API server, unless that is switched off."""
    if missing := process.settings.switched_off(FEATURE) or engineless(has_engine) or unmet(FEATURE):
        process.faults.off(FEATURE, missing)
        return
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages  # noqa: PLC0415 - only where vLLM serves

    patch(AnthropicServingMessages, process.faults)
    process.capabilities.add(FEATURE, "on")


def patch(serving: type[Any], faults: Faults) -> None:
    """Hook ``serving``, which inherits the method from that of chats; an earlier hook is replaced."""
    name = _OBJECTS if hasattr(serving, _OBJECTS) else _CHUNKS
    wrap_method(serving, name, functools.partial(_hooked, faults), mark=_STOCK)


def _hooked(faults: Faults, stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def generator(self: Any, request: Any, result_generator: Any, *args: Any, **named: Any) -> Any:
        if not faults.on(FEATURE) or not getattr(self, "enable_prompt_tokens_details", False):
            return stock(self, request, result_generator, *args, **named)
        outputs = _FirstSeen(result_generator)
        return _FirstTold(stock(self, request, outputs, *args, **named), outputs, faults)

    return generator


class _FirstSeen:
    """An engine's outputs, of which the first is kept; the others come without a step in between."""

    def __init__(self, outputs: AsyncIterator[Any]) -> None:
        self._next: Next = outputs.__anext__
        self.first: Any = None

    def __aiter__(self) -> _FirstSeen:
        return self

    def __anext__(self) -> Awaitable[Any]:
        return self._take() if self.first is None else self._next()

    async def _take(self) -> Any:
        self.first = await self._next()
        return self.first


class _FirstTold:
    """A stream's chunks, whose first one gets the counts; the others come without a step in between."""

    def __init__(self, chunks: Any, outputs: _FirstSeen, faults: Faults) -> None:
        self._chunks = chunks
        self._outputs = outputs
        self._faults = faults
        self._begun = False

    def __aiter__(self) -> _FirstTold:
        return self

    def __anext__(self) -> Awaitable[Any]:
        following: Awaitable[Any] = self._chunks.__anext__() if self._begun else self._first()
        return following

    async def aclose(self) -> None:
        """End the stream."""
        await self._chunks.aclose()

    async def _first(self) -> Any:
        chunk = await self._chunks.__anext__()
        self._begun = True
        with self._faults.guard(FEATURE):
            chunk = with_counts(chunk, self._outputs.first)
        return chunk  # noqa: RET504 - as it was, after a fault


def with_counts(chunk: Any, output: Any) -> Any:
    """A chunk whose usage has the counts of an engine's output; unchanged where it has no usage, or there are none."""
    counts = {name: told for name, field in _COUNTS.items() if (told := getattr(output, field, None)) is not None}
    if not counts:
        return chunk
    return _line_with(chunk, counts) if isinstance(chunk, str) else _object_with(chunk, counts)


def _line_with(chunk: str, counts: dict[str, int]) -> str:
    if not chunk.startswith(_DATA):
        return chunk
    told = msgspec.json.decode(chunk.removeprefix(_DATA))
    if not isinstance(told, dict) or not isinstance(told.get("usage"), dict):
        return chunk
    told["usage"]["prompt_tokens_details"] = counts
    return f"{_DATA}{msgspec.json.encode(told).decode()}\n\n"


def _object_with(chunk: Any, counts: dict[str, int]) -> Any:
    """Pydantic's model of a chunk; one of an error has no usage."""
    usage = getattr(chunk, "usage", None)
    if usage is not None:
        chunk.usage = type(usage).model_validate(usage.model_dump() | {"prompt_tokens_details": counts})
    return chunk
