"""The outermost layer: accounts for a request, however it ends."""

from __future__ import annotations

from cachefleet_controlplane.gateway.account.request_account import RequestAccount
from cachefleet_controlplane.gateway.admit.tenant_admission import admitted_request
from cachefleet_controlplane.gateway.request.request import Layer, Request


class AccountLayer:
    """Accounts for the requests that ``answer`` answers; ``traced``: also as spans, where traces are on."""

    def __init__(self, account: RequestAccount, answer: Layer, *, traced: bool = False) -> None:
        self._account = account
        self._answer = answer
        self._traced = traced

    async def __call__(self, request: Request) -> None:
        """Answer a request that has just come. ApiError as ``answer``."""
        arrival = request.arrival
        if self._traced:
            self._account.begin_span(arrival)
        with self._account.of(arrival.trace, arrival.reply, admitted_request(arrival.scope)):
            await self._answer(request)
