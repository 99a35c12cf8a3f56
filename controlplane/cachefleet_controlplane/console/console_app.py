"""The console as one ASGI application, made on the first request: most control planes run for days without one."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any, ClassVar, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from cachefleet_controlplane.console.live.live_fleet import ViewedFleet
from cachefleet_controlplane.internal_auth.authorizer import AdminAuthorizer

PATH: Final = "/console"


class Console:
    """The application to be mounted at ``path``; ``admin`` is the admin API, whose authorizer is ``authorize``."""

    path: ClassVar = PATH

    def __init__(self, fleet: ViewedFleet, *, admin: ASGIApp, authorize: AdminAuthorizer) -> None:
        self._fleet = fleet
        self._admin = admin
        self._authorize = authorize
        self._making = asyncio.Lock()
        self._parts: Any = None
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app or await self._made()
        await app(scope, receive, send)

    def end_streams(self) -> None:
        """End what viewers follow: this replica withdraws."""
        if self._parts is not None:
            self._parts.ended.set()

    async def _made(self) -> ASGIApp:
        async with self._making:
            if self._app is None:
                module = await asyncio.to_thread(import_module, "cachefleet_controlplane.console.console_routes")
                self._parts = module.console_parts(self._fleet, admin=self._admin, authorize=self._authorize)
                self._app = module.console_routes(self._parts)
            return self._app
