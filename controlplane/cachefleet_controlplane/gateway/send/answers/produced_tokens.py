"""What a worker has produced of an answer so far, read from its events or its whole answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Raw, Struct

HANDED_BACK: Final = "cache_threshold"
"""Finish reason of an answer that its worker hands back unfinished, or that its gate refuses."""
ABORTED: Final = "abort"
"""Finish reason of an answer that its engine gave up for reasons of its own: it falls asleep, is paused, or ends."""
_MARKS: Final = (HANDED_BACK.encode(), b'"finish_reason":"abort"')
_CHAT_CHUNK: Final = "chat.completion.chunk"
_NO_IDS: Final = Raw(b"null")
_NOT_TOLD: Final = (b"null", b"[]")


class _Delta(Struct, frozen=True):
    content: str | None = None


class _Choice(Struct, frozen=True):
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: Raw = _NO_IDS


class _Chunk(Struct, frozen=True):
    choices: list[_Choice]
    id: str = ""
    object: str = ""
    created: int = 0
    model: str = ""
    prompt_token_ids: Raw = _NO_IDS


_chunk = msgspec.json.Decoder(_Chunk)
_ids = msgspec.json.Decoder(list[int])


def may_give_up(body: bytes) -> bool:
    """Whether a whole answer, or an event, may say that its worker gave the answer up: cheap, and never wrong in No."""
    return _MARKS[0] in body or _MARKS[1] in body


def aborts(body: bytes) -> bool:
    """Whether a whole answer, or an event, says that its engine gave it up."""
    return _MARKS[1] in body


class Name(Struct, frozen=True):
    """Members that every event of one answer repeats."""

    id: str
    object: str
    created: int
    model: str

    @property
    def is_chat(self) -> bool:
        """Whether the events are those of a chat."""
        return self.object == _CHAT_CHUNK


@dataclass(slots=True)
class Produced:
    """What has come of an answer with one choice; ids need ``return_token_ids``."""

    name: Name | None = None
    """None before the first event."""
    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    _prompt: bytes = b""
    """The prompt's ids as raw JSON: they are many, and rarely needed."""

    @property
    def tells_prompt(self) -> bool:
        """Whether the worker has sent the prompt's ids."""
        return bool(self._prompt)

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt's ids; empty where the worker has not sent them, or not as a list of ids."""
        try:
            return _ids.decode(self._prompt) if self._prompt else []
        except msgspec.DecodeError:
            return []

    def begin(self, name: Name, prompt: bytes) -> None:
        """Take what the first events told, which others have read: ``prompt`` are its ids as JSON."""
        self.name, self._prompt = name, prompt

    def add(self, ids: list[int], text: str, finish: str) -> None:
        """Add ids, text and finish reason that others have read."""
        self.ids += ids
        self.text += text
        self.finish = finish or self.finish

    def note(self, data: bytes) -> str:
        """Add an event's JSON, or a whole answer; return its text. Anything else changes nothing and gives ""."""
        try:
            chunk = _chunk.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return ""
        if self.name is None:
            self.name = Name(chunk.id, chunk.object, chunk.created, chunk.model)
        self._take_prompt(chunk.prompt_token_ids)
        return "".join(map(self._add, chunk.choices))

    def _add(self, choice: _Choice) -> str:
        self._take_prompt(choice.prompt_token_ids)
        self.ids += choice.token_ids or ()
        said = choice.delta or choice.message
        text = choice.text or (said.content if said else None) or ""
        self.text += text
        self.finish = choice.finish_reason or self.finish
        return text

    def _take_prompt(self, ids: Raw) -> None:
        if not self._prompt and (told := bytes(ids)) not in _NOT_TOLD:
            self._prompt = told
