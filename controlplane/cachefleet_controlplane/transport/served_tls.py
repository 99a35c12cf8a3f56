"""TLS of a port: the pair in a folder, replaced without a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from cachefleet_core.tls_names import CERTIFICATE, PRIVATE_KEY
from cachefleet_runtime.tls import Followed, server_context

Present = Callable[[bytes, bytes], None]
"""Presents a certificate and its private key, PEM, from now on. ValueError where they cannot be used."""

LOOK_SECONDS: Final = 1.0


class ServedTls:
    """The pair, looked at again every ``look_seconds``. OSError where it cannot be used."""

    def __init__(self, folder: Path, *, look_seconds: float = LOOK_SECONDS) -> None:
        server_context(folder)
        self._pair = folder / CERTIFICATE, folder / PRIVATE_KEY
        self._look_seconds = look_seconds

    @asynccontextmanager
    async def presenting(self, present: Present) -> AsyncIterator[None]:
        """Have native code present the pair, and while within each that replaces it. OSError where it cannot use it."""
        presented = Followed(self._pair, lambda: self._present(present))
        following = asyncio.create_task(self._follow(presented))
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait({following})

    async def _follow(self, presented: Followed[None]) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            presented.current()

    def _present(self, present: Present) -> None:
        certificate, key = (file.read_bytes() for file in self._pair)
        try:
            present(certificate, key)
        except ValueError as error:
            raise OSError(str(error)) from error
