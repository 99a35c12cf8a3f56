"""Messages of one connection that wait for their turn, in order; the bytes that wait count in the budget of bodies."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from cachefleet_controlplane.gateway.body_budget import BodyShare
from cachefleet_controlplane.gateway.responses_socket.socket_limits import MAX_REFUSED, MAX_WAITING
from cachefleet_controlplane.wire.errors import ApiError

_BINARY: Final = "A message must be text, with one JSON object in it."
_FULL: Final = f"At most {MAX_WAITING} requests of a connection may wait. Send the next one after a response has ended."


class End(Enum):
    """Why no more messages come."""

    GONE = auto()
    RESTART = auto()
    FLOOD = auto()


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """The text of a message, and what it takes of the budget."""

    body: bytes
    share: BodyShare


Item = QueuedMessage | ApiError
"""A request, or the error that one is answered with: in its turn, or it would seem to be that of the one before."""


class MessageQueue:
    """Messages in the order of their arrival; ``share`` makes an empty share of the budget."""

    def __init__(self, share: Callable[[], BodyShare]) -> None:
        self._new_share = share
        self._items: deque[Item] = deque()
        self._there = asyncio.Event()
        self.end: End | None = None

    def put(self, text: str | None) -> None:
        """Add a message; None is a binary one. After the end nothing is added."""
        if self.end is not None:
            return
        if len(self._items) >= MAX_WAITING + MAX_REFUSED:
            self.finish(End.FLOOD)
            return
        self._items.append(self._item(text))
        self._there.set()

    def finish(self, end: End) -> None:
        """No more messages come, and those that wait are not answered; only the first end counts."""
        self.end = self.end or end
        self.clear()
        self._there.set()

    async def take(self) -> Item | None:
        """Return the next message, waiting for one; None at the end. The bytes are no longer counted."""
        await self._there.wait()
        if not self._items:
            return None
        item = self._items.popleft()
        if not self._items and self.end is None:
            self._there.clear()
        if isinstance(item, QueuedMessage):
            item.share.give_back()
        return item

    def clear(self) -> None:
        """Drop what waits."""
        while self._items:
            item = self._items.popleft()
            if isinstance(item, QueuedMessage):
                item.share.give_back()

    def _item(self, text: str | None) -> Item:
        if text is None:
            return ApiError(400, _BINARY)
        if sum(isinstance(item, QueuedMessage) for item in self._items) >= MAX_WAITING:
            return ApiError(429, _FULL, code="too_many_waiting")
        body, share = text.encode(), self._new_share()
        try:
            share.take(len(body))
        except ApiError as error:
            return error
        return QueuedMessage(body, share)
