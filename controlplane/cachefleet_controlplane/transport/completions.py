"""The native transport's threads, and the handlers on the event loop of what they have done, called in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

import cachefleet_native

logger = logging.getLogger(__name__)

Handler = Callable[[Any], None]
FIRST_NUMBER: Final = 1


class Completions:
    """The threads of one process, and a handler for each number; an async context manager, within which handlers are
    called on the running event loop. OSError where the threads cannot be started.
    """

    def __init__(self, *, threads: int = 1) -> None:
        self.version: Final = cachefleet_native.__version__
        self.native: Final = cachefleet_native.Transport(threads=threads)
        self._handlers: dict[int, Handler] = {}
        self._numbers = count(FIRST_NUMBER)

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self.native.fileno(), self._dispatch)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        asyncio.get_running_loop().remove_reader(self.native.fileno())

    def expect(self, handler: Handler) -> int:
        """Return a number whose completions ``handler`` is called with, until it is forgotten."""
        number = next(self._numbers)
        self._handlers[number] = handler
        return number

    def forget(self, number: int) -> None:
        """Drop further completions of a number."""
        self._handlers.pop(number, None)

    def _dispatch(self) -> None:
        for number, completion in self.native.take():
            handler = self._handlers.get(number)
            if handler is None:
                continue
            try:
                handler(completion)
            except Exception:  # one caller's defect is not another's
                logger.exception("a completion of the native transport could not be handled")
