"""The layer of conversations: begins a request's turn, and counts what became of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from msgspec import Raw
from msgspec.structs import replace

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.gateway.apis.responses import without_history
from cachefleet_controlplane.gateway.converse.rehydration import continued
from cachefleet_controlplane.gateway.converse.turn import PlainTurn, Turn
from cachefleet_controlplane.gateway.converse.turn_plan import with_handle
from cachefleet_controlplane.gateway.converse.turns import Turns
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.request.request import Layer, Request
from cachefleet_controlplane.wire.headers import ACCOUNT, Header, identified
from cachefleet_controlplane.wire.http_exchange import Scope

Before = tuple[Raw, ...] | None
"""The items up to a previous response; None where they are stored, if anywhere."""
Begin = Callable[[RequestInfo, Before], Awaitable[Turn]]
"""Begins the turn of a request that continues these items."""


class ConnectionMemory(Protocol):
    """The last response of a client's connection."""

    async def turn(self, info: RequestInfo, begin: Begin) -> Turn:
        """Begin the turn of a request, with the items that it continues where they are here. ApiError 400."""
        ...


class ConverseLayer:
    """Has requests answered as turns; without ``turns`` no conversation is kept.

    ``memory_of`` returns the memory of the connection that a scope came by, if it has one.
    """

    def __init__(
        self,
        fleet: Fleet,
        turns: Turns | None,
        memory_of: Callable[[Scope], ConnectionMemory | None],
        answer: Layer,
    ) -> None:
        self._fleet = fleet
        self._turns = turns
        self._memory_of = memory_of
        self._answer = answer

    async def __call__(self, request: Request) -> None:
        """Answer a request whose model is found. ApiError 400, 404, 413, 503."""
        trace = request.arrival.trace
        turn = await self._turn(request)
        try:
            answer = self._answer(
                replace(
                    request,
                    answered=True,
                    info=turn.info,
                    headers=self._headers(request, turn),
                    keep_ids=turn.keeps_ids,
                    turn=turn,
                )
            )
            del request  # the next layers decide how much of it is kept, and how long
            await answer
        finally:
            self._over(turn, trace)

    async def whole(self, request: Request) -> Request:
        """Return a request that is not answered, with the stored conversation that it continues."""
        info = request.info
        if self._turns is None:
            return replace(request, info=without_history(info))
        return replace(request, info=await self._turns.whole(info, request.tenant, request.model))

    async def _turn(self, request: Request) -> Turn:
        memory, begin = self._memory_of(request.arrival.scope), partial(self._begin, request)
        return await (begin(request.info) if memory is None else memory.turn(request.info, begin))

    async def _begin(self, request: Request, info: RequestInfo, before: Before = None) -> Turn:
        if self._turns is not None:
            tenant, model = request.tenant, request.model
            return await self._turns.begin(info, request.headers, tenant=tenant, model=model, before=before)
        return PlainTurn(without_history(info) if before is None else continued(info, before))

    def _headers(self, request: Request, turn: Turn) -> list[Header]:
        """Headers for workers, with the names by which they know the conversation and are asked about the answer."""
        name, headers = request.arrival.trace.id, list(request.headers)
        headers = identified(headers, name) if turn.named else headers
        # Any worker may say what was made of a whole answer whose client left.
        asked = not turn.info.stream and self._fleet.render_facts(request.model.name).left_at
        return [*headers, (ACCOUNT, name.encode())] if asked else headers

    def _over(self, turn: Turn, trace: DecisionTrace) -> None:
        trace.continuation = with_handle(turn.outcome, trace.handle)
        turn.outcome = turn.outcome and trace.continuation
        if self._turns is not None:
            self._turns.over(turn)
