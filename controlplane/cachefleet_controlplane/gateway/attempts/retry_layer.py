"""The innermost layer: places a request on a worker, sends it there, and tries others where that fails."""

from __future__ import annotations

from cachefleet_controlplane.gateway.attempts.exchange import Exchange
from cachefleet_controlplane.gateway.attempts.gateway_context import GatewayContext
from cachefleet_controlplane.gateway.request.request import Request


class RetryLayer:
    """Answers requests with what workers send: each attempt is placed anew."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def __call__(self, request: Request) -> None:
        """Answer a request whose prompt is known, whatever happens, except when it is cancelled."""
        request, trace = self._context.affinity.applied(request), request.arrival.trace
        if request.turn is not None:
            request = request.turn.placed(request, lambda: trace.decision)
        exchange = Exchange(self._context, request)
        del request  # the exchange decides how much of it is kept, and how long
        await exchange.run()
