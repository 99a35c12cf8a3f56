"""Tells callers on an event loop what the native transport's threads have done, in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Protocol

logger = logging.getLogger(__name__)

Handler = Callable[[Any], None]
FIRST_NUMBER: Final = 1


class NativeTransport(Protocol):
    """What the native module's ``Transport`` has for completions."""

    @property
    def panics(self) -> int: ...
    def fileno(self) -> int: ...
    def take(self) -> list[tuple[int, Any]]: ...


class Completions:
    """Handlers of what native threads tell, each under a number of its own; used on one event loop."""

    def __init__(self, native: NativeTransport) -> None:
        self.native: Final = native
        self._handlers: dict[int, Handler] = {}
        self._numbers = count(FIRST_NUMBER)
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        """Tell handlers on the running event loop, until ``detach``."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.native.fileno(), self._tell)

    def detach(self) -> None:
        """Tell nothing any more."""
        if self._loop is not None:
            self._loop.remove_reader(self.native.fileno())
            self._loop = None

    def expect(self, handler: Handler) -> int:
        """Return a number under which ``handler`` is told all that comes, until it is forgotten."""
        number = next(self._numbers)
        self._handlers[number] = handler
        return number

    def forget(self, number: int) -> None:
        """Drop what still comes for a number."""
        self._handlers.pop(number, None)

    def _tell(self) -> None:
        for number, told in self.native.take():
            handler = self._handlers.get(number)
            if handler is None:
                continue
            try:
                handler(told)
            except Exception:  # one caller's defect is not another's
                logger.exception("what the transport told could not be handled")
