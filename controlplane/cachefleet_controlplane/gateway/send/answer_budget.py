"""One budget over the bytes of all whole answers that are held at once, shared between workers.

Small answers are not counted: nearly all are, and requests under way bound their number.
"""

from __future__ import annotations

from typing import Final

from cachefleet_controlplane.gateway.body_budget import BodyBudget, BodyShare
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_runtime.sse import StreamTooLargeError

MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
MAX_ANSWERS_BYTES: Final = 2 * MAX_ANSWER_BYTES
"""Of all answers; those of one worker have as much as is free, so half of it where they are alone."""
COUNTED_BYTES: Final = 256 * 1024
"""An answer of fewer is not counted."""


class NoRoomError(Exception):
    """Too many bytes of whole answers are held."""


class HeldAnswerBytes:
    """What one answer takes of the budget; given back once nothing refers to this, as the answer does."""

    __slots__ = ("_budget", "_share", "_size", "_worker")

    def __init__(self, budget: BodyBudget, worker: str) -> None:
        self._budget = budget
        self._worker = worker
        self._share: BodyShare | None = None
        """None as long as the answer is not counted, as nearly all."""
        self._size = 0

    def grow(self, size: int, *, announced: int = 0) -> None:
        """Count ``size`` bytes more, of ``announced`` in all; to be called before they are kept.

        StreamTooLargeError over MAX_ANSWER_BYTES, NoRoomError where others hold too much.
        """
        self._size += size
        if self._size > MAX_ANSWER_BYTES or announced > MAX_ANSWER_BYTES:
            raise StreamTooLargeError("an answer that is too long")
        if self._size > COUNTED_BYTES:
            self._count(size)

    def _count(self, size: int) -> None:
        if self._share is None:
            self._share, size = BodyShare(self._budget, self._worker), self._size
        try:
            self._share.take(size)
        except ApiError as error:
            raise NoRoomError from error

    def __del__(self) -> None:
        if self._share is not None:
            self._share.give_back()


class AnswerBudget:
    """The budget of one gateway, of ``limit`` bytes."""

    def __init__(self, limit: int = MAX_ANSWERS_BYTES) -> None:
        self._budget = BodyBudget(limit)

    def begin(self, worker: str) -> HeldAnswerBytes:
        """Begin to count an answer of a worker, by its URL."""
        return HeldAnswerBytes(self._budget, worker)

    @property
    def held(self) -> int:
        """Bytes that are counted now."""
        return self._budget.held
