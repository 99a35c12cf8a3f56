"""Anthropic's messages API, and its count of tokens."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from cachefleet_controlplane.gateway.apis.api import PassingApi, PassingTransformer, StreamTransformer
from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.gateway.send.answers.usage import Usage, count, usage_in
from cachefleet_controlplane.wire.json_members import READ_ERRORS
from cachefleet_runtime.sse import event_data, event_name

_OUTPUT: Final = "output_tokens"
_SIGNATURE: Final = b'"type":"signature_delta"'
"""A delta that no token stands for."""


class _Message(Struct, frozen=True):
    usage: Any = None


class _Event(Struct, frozen=True):
    message: _Message | None = None
    usage: Any = None


_message = msgspec.json.Decoder(_Message)
_event = msgspec.json.Decoder(_Event)


class MessagesApi(PassingApi):
    """``/v1/messages``."""

    def usage(self, body: bytes) -> Usage | None:
        """Return Anthropic's counts in OpenAI's terms; None where there are none."""
        try:
            return _common(_message.decode(body).usage)
        except READ_ERRORS:
            return None

    def transformer(self, info: RequestInfo, fingerprint: bytes | None) -> StreamTransformer:  # noqa: ARG002 # as Api
        """Return the transformer that reads usage."""
        return _MessagesSieve(info.endpoint)


class CountTokensApi(MessagesApi):
    """``/v1/messages/count_tokens``: any worker can answer and caches nothing, so nothing is salted."""

    def usage(self, body: bytes) -> Usage | None:  # noqa: ARG002 # as Api has it
        return None


class _MessagesSieve(PassingTransformer):
    """Reads usage from the first and the last events."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._first: dict[str, Any] = {}

    def feed(self, event: bytes) -> bytes:
        name = event_name(event)
        if name == b"content_block_delta":
            self.produced += _SIGNATURE not in event
        elif name == b"message_start":
            self._begin(event_data(event))
        elif name == b"message_delta":
            self._end(event_data(event))
        return super().feed(event)

    def _begin(self, data: bytes) -> None:
        self._first = _counts_in(data)
        self.begun = _common(self._first)

    def _end(self, data: bytes) -> None:
        """Merge the last counts with the first: Anthropic's own end with those of the output alone, vLLM's with all."""
        last = _counts_in(data)
        if (usage := _common(last)) is None:
            return
        if not usage.prompt_tokens:
            last = {name: told for name, told in last.items() if name == _OUTPUT}
        self.usage = _common(self._first | {name: told for name, told in last.items() if told is not None})


def _counts_in(data: bytes) -> dict[str, Any]:
    """The counts in an event's JSON, by Anthropic's names; empty where it has none."""
    try:
        event = _event.decode(data)
    except READ_ERRORS:
        return {}
    counts = event.usage or (event.message.usage if event.message else None)
    return counts if isinstance(counts, dict) else {}


def _common(told: object) -> Usage | None:
    """Sum up the input: Anthropic counts tokens read from the cache, and written to it, apart from the others."""
    usage = usage_in(told, prompt="input", completion="output")
    if usage is None or not isinstance(told, dict):
        return None
    read, written = count(told.get("cache_read_input_tokens")), count(told.get("cache_creation_input_tokens"))
    return Usage(
        prompt_tokens=usage.prompt_tokens + (read or 0) + (written or 0),
        completion_tokens=usage.completion_tokens,
        cached_tokens=read,
    )
