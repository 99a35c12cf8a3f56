"""Waits for an engine that serves, and tells of one that does not take the worker key."""

from __future__ import annotations

import asyncio
import logging

from cachefleet_worker.agent.engines.vllm.http_client import EngineClient, EngineError, EngineFacts, EngineRefusalError

log = logging.getLogger(__name__)


class KeyRefusedError(Exception):
    """The engine does not take the worker key, and will not before somebody changes something."""

    def __init__(self, status: int) -> None:
        super().__init__(
            f"the engine answers HTTP {status} to the worker key: it was started with another one. Take --api-key and"
            " VLLM_API_KEY out of spec.engine, podTemplate and image; if the Secret of the worker keys was changed"
            " since, delete the pod"
        )


class EngineArrival:
    """Polls an engine for its facts; ``key_refused`` while it answers 401 or 403 to that."""

    def __init__(self, client: EngineClient, *, poll_seconds: float, key_refusals: int) -> None:
        self._client = client
        self._poll_seconds = poll_seconds
        self._key_refusals = key_refusals
        self._refusals = 0
        self._refused: asyncio.Future[None] | None = None
        self._said = ""

    @property
    def key_refused(self) -> bool:
        """Whether the engine's last word was that it does not take the key."""
        return self._refusals > 0

    async def facts(self) -> EngineFacts:
        """Wait for an engine; its facts."""
        self._said = ""
        while True:
            try:
                facts = await self._client.facts()
            except EngineError as error:
                self._failed(error)
            else:
                self._refusals = 0
                return facts
            await asyncio.sleep(self._poll_seconds)

    async def watch(self) -> None:
        """Until cancelled. KeyRefusedError once the key was refused so often in a row."""
        self._refused = asyncio.get_running_loop().create_future()
        await self._refused

    def _failed(self, error: EngineError) -> None:
        if str(error) != self._said:
            log.info("waiting for the engine", extra={"error": str(error)})
        self._said = str(error)
        if not isinstance(error, EngineRefusalError) or not error.of_key:
            self._refusals = 0
            return
        self._refusals += 1
        if self._refusals >= self._key_refusals and self._refused is not None and not self._refused.done():
            self._refused.set_exception(KeyRefusedError(error.status))
