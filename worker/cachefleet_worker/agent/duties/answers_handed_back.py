"""Has the engine of a worker that drains give back the answers that other workers can go on with."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cachefleet_worker.agent.engines.engine import PolicyControl
from cachefleet_worker.agent.engines.engine_errors import EngineError

MAX_STAY_SECONDS: Final = 15.0
"""How long answers that others can go on with stay at most: gateways have moved streams by then."""
_STAY_SHARE: Final = 1 / 4
"""Of the drain's time, at most."""

log = logging.getLogger(__name__)


class AnswersHandedBack:
    """Asks an engine for it; a failure is logged alone, because what is not given back runs until the drain's end."""

    def __init__(self, policies: PolicyControl) -> None:
        self._policies = policies
        self._due = asyncio.Event()
        self._able = False
        self._stay_seconds = 0.0

    def begin(self, *, able: bool) -> None:
        """Begin an epoch, of an engine that can give answers back or not."""
        self._able = able
        self._due.clear()

    def drains(self, seconds: float) -> None:
        """The worker drains, within so many seconds: have it give them back after a part of these."""
        self._stay_seconds = min(MAX_STAY_SECONDS, _STAY_SHARE * seconds)
        if self._able:
            self._due.set()

    async def run(self) -> None:
        """Ask the engine when requested, until cancelled."""
        while True:
            await self._due.wait()
            await asyncio.sleep(self._stay_seconds)
            if not self._due.is_set():
                continue  # another engine process takes work again
            self._due.clear()
            try:
                answers = await self._policies.hand_back()
            except EngineError as error:
                log.warning("answers not handed back", extra={"error": str(error)})
            else:
                log.info("answers handed back to other workers", extra={"answers": answers})
