"""Carries actions out, one request each, and only while this process leads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from cachefleet_operator.api import Object, Ref, RetryableError
from cachefleet_operator.plan import Action, Apply, Create, Emit, WriteStatus

log = logging.getLogger(__name__)


class NotLeadingError(Exception):
    """The Lease is no longer held: nothing may be written."""


class WriteApi(Protocol):
    """What an applier needs of the API server."""

    async def create(self, manifest: Object) -> Object: ...
    async def apply(self, manifest: Object, *, subresource: str = "") -> Object: ...


class Applier:
    """Writes; ``leads`` is asked before each request."""

    def __init__(self, api: WriteApi, leads: Callable[[], bool]) -> None:
        self._api = api
        self._leads = leads

    async def carry_out(self, actions: Sequence[Action]) -> None:
        """In order; the first failure ends it, and a later plan takes up what is left."""
        for action in actions:
            await self.act(action)

    async def act(self, action: Action) -> None:
        """One action. NotLeadingError where it may not be done, ApiError where it failed."""
        if not self._leads():
            raise NotLeadingError
        manifest = action.event if isinstance(action, Emit) else action.manifest
        log.info("%s %s", type(action).__name__, Ref.of(manifest), extra={"action": type(action).__name__})
        match action:
            case Create(manifest):
                await self._api.create(manifest)
            case Apply(manifest):
                await self._api.apply(manifest)
            case Emit(event):
                await self._tell(event)
            case WriteStatus(manifest):
                await self._api.apply(manifest, subresource="status")

    async def _tell(self, event: Object) -> None:
        try:
            await self._api.create(event)
        except RetryableError as error:
            if error.reason != "AlreadyExists":
                raise
