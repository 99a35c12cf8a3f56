"""Waits for an engine that serves, and detects one that refuses the worker key."""

from __future__ import annotations

import asyncio
import logging

from cachefleet_worker.agent.engines.engine import Engine, EngineProcess
from cachefleet_worker.agent.engines.engine_errors import EngineError, EngineRefusalError

log = logging.getLogger(__name__)


class KeyRefusedError(Exception):
    """The engine refuses the worker key; retrying does not help."""


class EngineArrival:
    """Connects to an engine again and again; ``key_refused`` while it refuses the worker key."""

    def __init__(self, engine: Engine, *, poll_seconds: float, key_refusals: int) -> None:
        self._engine = engine
        self._poll_seconds = poll_seconds
        self._key_refusals = key_refusals
        self._refusals = 0
        self._refused: asyncio.Future[None] | None = None
        self._logged = ""

    @property
    def key_refused(self) -> bool:
        """Whether the engine's last answer refused the worker key."""
        return self._refusals > 0

    async def process(self) -> EngineProcess:
        """Wait for an engine that serves; its process."""
        self._logged = ""
        while True:
            try:
                process = await self._engine.connect()
            except EngineError as error:
                self._failed(error)
            else:
                self._refusals = 0
                return process
            await asyncio.sleep(self._poll_seconds)

    async def watch(self) -> None:
        """Until cancelled. KeyRefusedError once the key was refused so often in a row."""
        self._refused = asyncio.get_running_loop().create_future()
        await self._refused

    def _failed(self, error: EngineError) -> None:
        if str(error) != self._logged:
            log.info("waiting for the engine", extra={"error": str(error)})
        self._logged = str(error)
        advice = error.key_advice if isinstance(error, EngineRefusalError) else ""
        if not advice:
            self._refusals = 0
            return
        self._refusals += 1
        if self._refusals >= self._key_refusals and self._refused is not None and not self._refused.done():
            self._refused.set_exception(KeyRefusedError(advice))
