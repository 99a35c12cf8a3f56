"""Adds to a completion's answer, whole or streamed, a reference to its prompt and answer together."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from cachefleet_core.continuation import REF_MEMBER, PromptCacheRef, TokenId, ids_array
from cachefleet_worker.plugin.asgi import Send, with_length

ENDS: Final = frozenset({"stop", "length"})
"""Finish reasons of an answer that ended by itself."""
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
"""Of an answer that is held until it can be changed; a longer one is passed as it is."""
_EVENT_END: Final = b"\n\n"
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Choice(Struct):
    token_ids: list[TokenId]
    finish_reason: str | None = None


class _Answer(Struct):
    choices: list[_Choice]
    id: str = ""


_answer = msgspec.json.Decoder(_Answer)
_members = msgspec.json.Decoder(dict[str, Raw])


class ProducedIds:
    """Token ids of an answer's only choice, as far as they were read."""

    def __init__(self) -> None:
        self._ids = ids_array(())
        self._readable = True
        self._finish_reason = ""
        self.id = ""

    @property
    def whole(self) -> array[int] | None:
        """The ids; None where the answer did not end by itself, or was not read completely."""
        return self._ids if self._readable and self._finish_reason in ENDS else None

    def add(self, content: bytes) -> None:
        """Add a whole answer, or one event's data."""
        try:
            answer = _answer.decode(content)
        except _UNREADABLE:
            self._readable = False
            return
        self.id = self.id or answer.id
        for choice in answer.choices:
            self._ids.extend(choice.token_ids)
            self._finish_reason = choice.finish_reason or self._finish_reason
        self._readable &= len(answer.choices) < 2


class ReferenceAnswer:
    """``send`` of one answer; ``refer`` makes the reference from the answer's ids, null where they are unknown."""

    def __init__(self, send: Send, refer: Callable[[array[int]], PromptCacheRef | None]) -> None:
        self._send = send
        self._refer = refer
        self._ids = ProducedIds()
        self._start: Any = None
        """Held until the answer is whole."""
        self._held = bytearray()
        self._take: Callable[[bytes, bool], bytes] | None = None

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif message["type"] == "http.response.body" and self._take is not None:
            await self._body(self._take, message)
        else:
            await self._send(message)

    async def _begin(self, start: Any) -> None:
        kind = dict(start.get("headers", ())).get(b"content-type", b"") if start["status"] == 200 else b""
        if kind.startswith(b"application/json"):
            self._start, self._take = start, self._whole
            return
        if kind.startswith(b"text/event-stream"):
            self._take = self._events
        await self._send(start)

    async def _body(self, take: Callable[[bytes, bool], bytes], message: Any) -> None:
        more = message.get("more_body", False)
        given = take(message.get("body", b""), more)
        if self._start is not None and (given or not more):
            start, self._start = self._start, None
            await self._send(start if more else with_length(start, len(given)))
        if given or not more:
            await self._send({**message, "body": given})

    def _whole(self, data: bytes, more: bool) -> bytes:  # noqa: FBT001 - as of the message
        self._held += data
        if more and len(self._held) <= MAX_HELD_BYTES:
            return b""
        if more:
            self._take = None
            return bytes(self._held)
        self._ids.add(bytes(self._held))
        return self._with_member(bytes(self._held))

    def _with_member(self, content: bytes) -> bytes:
        try:
            members = _members.decode(content)
        except _UNREADABLE:
            return content
        return msgspec.json.encode({**members, REF_MEMBER: self._reference()})

    def _events(self, data: bytes, more: bool) -> bytes:  # noqa: FBT001 - as of the message
        """The whole events so far; the reference stands before the last."""
        self._held += data
        if len(self._held) > MAX_HELD_BYTES or not more:
            self._take = None
        passed = b"".join(self._passed())
        if self._take is not None:
            return passed
        return passed + bytes(self._held)

    def _passed(self) -> Iterator[bytes]:
        *whole, rest = bytes(self._held).split(_EVENT_END)
        self._held[:] = rest
        for event in whole:
            payload = event.removeprefix(_DATA).strip()
            if payload == _DONE:
                yield self._event()
            elif event.startswith(_DATA):
                self._ids.add(payload)
            yield event + _EVENT_END

    def _event(self) -> bytes:
        members: dict[str, Any] = {
            "id": self._ids.id,
            "object": "text_completion",
            "choices": [],
            REF_MEMBER: self._reference(),
        }
        return _DATA + b" " + msgspec.json.encode(members) + _EVENT_END

    def _reference(self) -> PromptCacheRef | None:
        ids = self._ids.whole
        return None if ids is None else self._refer(ids)
