"""What a worker has produced of an answer so far, read from its events or its whole answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Raw, Struct

HANDED_BACK: Final = "cache_threshold"
"""The finish reason of an answer that a worker gives up before its end."""
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


class _Usage(Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int | None = None


class _Chunk(Struct, frozen=True):
    choices: list[_Choice]
    id: str = ""
    object: str = ""
    created: int = 0
    model: str = ""
    prompt_token_ids: Raw = _NO_IDS
    usage: _Usage | None = None


_chunk = msgspec.json.Decoder(_Chunk)
_ids = msgspec.json.Decoder(list[int])


@dataclass(frozen=True, slots=True)
class Name:
    """What each event of one answer is signed with."""

    id: str
    object: str
    created: int
    model: str

    @property
    def is_chat(self) -> bool:
        return self.object == _CHAT_CHUNK


@dataclass(slots=True)
class Produced:
    """Of an answer with one choice; ids need ``return_token_ids``."""

    name: Name | None = None
    """None until something has come."""
    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    _prompt: bytes = b""
    """Its ids as they came: they are many, and nearly always nobody asks for them."""

    @property
    def tells_prompt(self) -> bool:
        """The worker has said what the prompt's ids are."""
        return bool(self._prompt)

    @property
    def prompt_ids(self) -> list[int]:
        """Empty where the worker has not said them, or not as a list of ids."""
        try:
            return _ids.decode(self._prompt) if self._prompt else []
        except msgspec.DecodeError:
            return []

    @property
    def handed_back(self) -> bool:
        return self.finish == HANDED_BACK

    def note(self, data: bytes) -> str:
        """Take an event's JSON, or a whole answer, over; its text. What is none changes nothing."""
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
