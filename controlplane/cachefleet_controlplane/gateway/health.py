"""What load balancers and load generators ask first: ``/health``, ``/ping`` and ``/version``, as vLLM has them.

They need no API key and no place among the requests under way: a full gateway is alive.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Final

import msgspec

from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.http_exchange import JSON, Receive, Reply, Scope

Handler = Callable[[Scope, Receive, Reply], Awaitable[None]]

HEALTH_PATHS: Final = ("/health", "/ping")
VERSION_PATH: Final = "/version"
OPEN_PATHS: Final = frozenset({*HEALTH_PATHS, VERSION_PATH})
"""Answered without an API key."""
_LATER: Final[Mapping[str, str]] = {"retry-after": "1"}
_OK: Final = msgspec.json.encode({"status": "ok"})


class Health:
    """Handlers of these paths; ``ready`` tells whether requests should be sent here, as /readyz does."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready
        self._version = msgspec.json.encode({"version": version("cachefleet")})

    def routes(self) -> Mapping[str, Mapping[str, Handler]]:
        """Return the handlers by path and method."""
        asked = dict.fromkeys(HEALTH_PATHS, self.health) | {VERSION_PATH: self.version}
        return {path: {"GET": handler, "HEAD": handler} for path, handler in asked.items()}

    async def health(self, _: Scope, __: Receive, reply: Reply) -> None:
        """Answer 200 while this replica serves. ApiError 503 while it starts or withdraws."""
        if not self._ready():
            raise ApiError(503, "This gateway is starting or shutting down.", headers=_LATER)
        await reply.whole(200, [JSON], _OK)

    async def version(self, _: Scope, __: Receive, reply: Reply) -> None:
        """Answer with cachefleet's version."""
        await reply.whole(200, [JSON], self._version)
