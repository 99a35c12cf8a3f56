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

    __slots__ = ("_share", "_size")

    def __init__(self, share: BodyShare) -> None:
        self._share = share
        self._size = 0

    def grow(self, size: int, *, announced: int = 0) -> None:
        """Count ``size`` bytes more, of ``announced`` in all; to be called before they are kept.

        StreamTooLargeError over MAX_ANSWER_BYTES, NoRoomError where others hold too much.
        """
        before, self._size = self._size, self._size + size
        if max(self._size, announced) > MAX_ANSWER_BYTES:
            raise StreamTooLargeError("an answer that is too long")
        if self._size <= COUNTED_BYTES:
            return
        try:
            self._share.take(size if before > COUNTED_BYTES else self._size)
        except ApiError as error:
            raise NoRoomError from error

    def __del__(self) -> None:
        self._share.give_back()


class AnswerBudget:
    """The budget of one gateway, of ``limit`` bytes."""

    def __init__(self, limit: int = MAX_ANSWERS_BYTES) -> None:
        self._budget = BodyBudget(limit)

    def begin(self, worker: str) -> HeldAnswerBytes:
        """Begin to count an answer of a worker, by its URL."""
        return HeldAnswerBytes(BodyShare(self._budget, worker))

    @property
    def held(self) -> int:
        """Bytes that are counted now."""
        return self._budget.held
