"""Dedicated renderers: ``vllm launch render`` processes without a GPU, asked before any worker.

They are asked in rotation. One that fails is left out, longer after each failure in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_runtime.backoff import backoff

ASKED: Final = 2
"""Renderers asked for one prompt, at most."""
PAUSE_SECONDS: Final = 5.0
MAX_PAUSE_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Health:
    failures: int = 0
    until: float = 0.0


class Renderers:
    """The dedicated renderers at ``urls``, in rotation, with their health; times are monotonic, in seconds."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._endpoints = [WorkerEndpoint(url, url.rstrip("/"), ready=True) for url in dict.fromkeys(urls)]
        self._health = {endpoint.url: _Health() for endpoint in self._endpoints}
        self._turn = 0

    def next(self, now: float) -> list[WorkerEndpoint]:
        """Return the healthy ones whose turn it is, ASKED at most."""
        if not self._endpoints:
            return []
        self._turn = (self._turn + 1) % len(self._endpoints)
        order = self._endpoints[self._turn :] + self._endpoints[: self._turn]
        return [endpoint for endpoint in order if self.healthy(endpoint.url, now)][:ASKED]

    def healthy(self, url: str, now: float) -> bool:
        """Whether its pause after failures is over."""
        return self._health[url].until <= now

    def failed(self, url: str, now: float) -> None:
        """Leave it out for a while: it gave no answer, or a 5xx."""
        health = self._health[url]
        health.until = now + backoff(health.failures, first=PAUSE_SECONDS, longest=MAX_PAUSE_SECONDS)
        health.failures += 1

    def answered(self, url: str) -> None:
        """Forget its failures."""
        self._health[url] = _Health()
