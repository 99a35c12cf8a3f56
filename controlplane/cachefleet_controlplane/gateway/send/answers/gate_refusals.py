"""Detects that a worker's gate refused a request, in its whole answer or the beginning of its stream. Pure.

Each choice is judged by itself. A refused one has the finish reason ``cache_threshold`` and no token, or, where the
engine knows no such reason, the same as stop reason. A choice that ends so after tokens was handed back, not refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Struct

from cachefleet_controlplane.gateway.send.answers.produced_tokens import HANDED_BACK
from cachefleet_controlplane.wire.json_members import READ_ERRORS
from cachefleet_runtime.sse import DONE, event_data

MAX_WATCHED_BYTES: Final = 4 * 1024 * 1024
"""Bound on a stream that is held back until all its choices have begun."""
_QUICK: Final = HANDED_BACK.encode()


class _Details(Struct, frozen=True):
    hit_tokens: int = 0
    preempted: int = 0


class _Transfer(Struct, frozen=True):
    cache_threshold: _Details | None = None


class _Choice(Struct, frozen=True):
    index: int = 0
    text: str | None = None
    delta: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None

    @property
    def produced(self) -> bool:
        """It has some part of an answer."""
        said = self.delta or self.message or {}
        return bool(self.text or self.token_ids or any(value for name, value in said.items() if name != "role"))

    @property
    def refused(self) -> bool:
        if self.finish_reason == HANDED_BACK:
            return not self.token_ids
        return self.stop_reason == HANDED_BACK and not self.produced


class _Answer(Struct, frozen=True):
    choices: list[_Choice] = []  # msgspec copies it
    kv_transfer_params: _Transfer | None = None


_answer = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A gate's refusal; ``hit_tokens``: tokens that were cached, None where the worker does not say."""

    hit_tokens: int | None = None


class UnreadableAnswerError(ValueError):
    """A whole answer that is not a JSON object of an answer's shape."""


def mentions_refusal(body: bytes) -> bool:
    """Whether an answer may be a refusal, by a search for bytes alone."""
    return _QUICK in body


def refusal_of(body: bytes) -> Refusal | None:
    """Return the refusal where any choice of a whole answer was refused, else None. UnreadableAnswerError."""
    try:
        answer = _answer.decode(body)
    except READ_ERRORS as error:
        raise UnreadableAnswerError from error
    if not mentions_refusal(body):
        return None
    details = answer.kv_transfer_params.cache_threshold if answer.kv_transfer_params else None
    if details is not None and not details.preempted:
        return Refusal(details.hit_tokens)
    return Refusal() if any(choice.refused for choice in answer.choices) else None


class Watch:
    """Tells from a stream's events whether it was refused: fed until ``decided``; what cannot be read is ignored.

    So many ``choices`` have to begin before the stream counts as accepted. One of several choices that exceeds
    MAX_WATCHED_BYTES before counts as refused: what its last choices will say is not known.
    """

    def __init__(self, choices: int = 1) -> None:
        self.choices: Final = choices
        self._begun: set[int] = set()
        self._bytes = 0
        self.refused = False
        self.decided = False

    def feed(self, event: bytes) -> None:
        """Take one whole event."""
        data = event_data(event)
        self._bytes += len(event)
        if data == DONE:
            self.decided = True
        elif data:
            for choice in _choices(data):
                self._note(choice)
        if self._bytes > MAX_WATCHED_BYTES:
            self.give_up()

    def give_up(self) -> None:
        """Decide now, since no more can be held back: refused if there are several choices."""
        if not self.decided:
            self.decided, self.refused = True, self.choices > 1

    def _note(self, choice: _Choice) -> None:
        if self.decided:
            return
        if choice.refused and choice.index not in self._begun:
            self.decided = self.refused = True
        elif choice.produced or choice.finish_reason is not None:
            self._begun.add(choice.index)
            self.decided = len(self._begun) >= self.choices


def _choices(data: bytes) -> list[_Choice]:
    try:
        return _answer.decode(data).choices
    except READ_ERRORS:
        return []
