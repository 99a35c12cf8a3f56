"""Ends the conversations that the plugin keeps, once the cache that they were kept for is gone."""

from __future__ import annotations

import asyncio
import logging

from cachefleet_worker.agent.engines.engine import PolicyControl
from cachefleet_worker.agent.engines.engine_errors import EngineError

log = logging.getLogger(__name__)


class ConversationEnding:
    """Asks an engine to end its conversations; failures are ignored, because conversations expire by themselves."""

    def __init__(self, policies: PolicyControl) -> None:
        self._policies = policies
        self._due = asyncio.Event()
        self._kept = False

    def begin(self, *, kept: bool) -> None:
        """Begin an epoch, of an engine that keeps conversations or does not."""
        self._kept = kept
        self._due.clear()

    def end(self) -> None:
        """End every conversation soon."""
        if self._kept:
            self._due.set()

    async def run(self) -> None:
        """End conversations when requested, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                turns = await self._policies.end_conversations()
            except EngineError as error:
                log.warning("conversations not ended", extra={"error": str(error)})
            else:
                log.info("conversations ended", extra={"turns": turns})
