"""How one request is sent to workers that keep conversations: a protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from cachefleet_controlplane.gateway.send.worker_answer import Answer, AttemptResult
from cachefleet_controlplane.wire.json_members import READ_ERRORS
from cachefleet_core.continuation import CONVERSATION_HEADER, Fingerprints, KeptPrefix, RefusalCode

_CONFLICT: Final = 409


class HandleOutcome(StrEnum):
    """What became of a handle from an earlier request; a metric's label."""

    HIT = "endpoint_local_shortcut_hit"
    MISS = "endpoint_local_shortcut_miss"
    """The worker that served the request does not have it, or has lost it."""
    FINGERPRINT_MISMATCH = "fingerprint_mismatch"
    """It was rendered by or with something else."""


Send = Callable[[bytes], Awaitable[AttemptResult]]


class Sending(Protocol):
    """Sends one request's bodies. Not shared between requests."""

    @property
    def first(self) -> str:
        """URL of the worker that keeps most of the conversation; "" where none does."""
        ...

    @property
    def only(self) -> bool:
        """No other worker can be asked for its keys: the body has a reference."""
        ...

    def headers(self, url: str) -> list[tuple[str, str]]:
        """Return the header that has a worker keep the request; none where it cannot."""
        ...

    async def send(self, url: str, body: bytes, send: Send) -> AttemptResult:
        """Send a body to a worker, by handle where that serves; ``send`` may be called more than once."""
        ...

    def answered(self, url: str, opened: AttemptResult) -> AttemptResult:
        """Learn from the answer of a worker that held the request; return it."""
        ...

    def rendered(self, tokens: int) -> None:
        """Take notice of a prompt's length, 0 where nobody gave its keys. ApiError 409 where nobody can answer it."""
        ...

    async def whole(self, body: bytes) -> bytes:
        """Return a body that any worker can be sent. ApiError 409 where there is none."""
        ...

    def ended(self, url: str) -> HandleOutcome | None:
        """Count and return what became of handles in the worker that served the request; to be called once."""
        ...


class _Code(Struct, frozen=True):
    code: str = ""


class _Refusal(Struct, frozen=True):
    error: _Code


_refusal = msgspec.json.Decoder(_Refusal)
_kept = msgspec.json.Decoder(KeptPrefix)


def keep_header(fingerprints: Fingerprints) -> tuple[str, str]:
    """Return the header that has a worker keep a request."""
    return CONVERSATION_HEADER, msgspec.json.encode(fingerprints).decode()


def refusal_code(answer: Answer | None) -> RefusalCode | None:
    """Return why a worker does not continue a handle; None for any other answer."""
    if answer is None or answer.status != _CONFLICT:
        return None
    try:
        return RefusalCode(_refusal.decode(answer.body).error.code)
    except (*READ_ERRORS, ValueError):
        return None


def kept_prefix(told: str) -> KeptPrefix | None:
    """Return what a worker's header says it keeps; None for nothing that can be read."""
    try:
        return _kept.decode(told) if told else None
    except READ_ERRORS:
        return None
