"""Chooses what moves the bytes of clients and workers: native code where a module is installed that fits, or Python."""

from __future__ import annotations

import logging
from importlib import import_module
from types import TracebackType
from typing import Final, Literal, Self

from cachefleet_controlplane.transport.completions import Completions
from cachefleet_core.native import MODULE, Choice, NativeError, lacking

logger = logging.getLogger(__name__)


class Transport:
    """The transport of one process, as an async context manager: within it native threads are listened to.

    ``completions`` is None where Python moves the bytes; ``reason`` says why ``code`` was chosen.
    """

    def __init__(
        self,
        code: Literal["native", "python"] = "python",
        reason: str = "set so",
        completions: Completions | None = None,
    ) -> None:
        self.code: Final = code
        self.reason: Final = reason
        self.completions: Final = completions

    @property
    def panics(self) -> int:
        """Requests that failed because native code panicked."""
        return 0 if self.completions is None else self.completions.native.panics

    async def __aenter__(self) -> Self:
        logger.info("transport in %s code: %s", self.code, self.reason)
        if self.completions is not None:
            self.completions.attach()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self.completions is not None:
            self.completions.detach()


def choose_transport(choice: Choice, *, threads: int = 1) -> Transport:
    """The transport to use. NativeError where "native" is asked for and cannot be had."""
    if choice == "python":
        return Transport()
    if not (lack := lacking()):
        try:
            return _native(threads)
        except OSError as error:
            lack = f"{threads} threads cannot be started: {error}"
    if choice == "native":
        raise NativeError(lack)
    return Transport("python", lack)


def _native(threads: int) -> Transport:
    native = import_module(MODULE)
    return Transport("native", f"{MODULE} {native.__version__}", Completions(native.Transport(threads=threads)))
