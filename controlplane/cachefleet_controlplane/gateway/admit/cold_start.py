"""The layer of cold starts: holds requests of models that have no ready worker, as at zero, until one is warm.

Nothing is known of a prompt yet when it is held: whatever asks workers comes after it. What is held is bounded twice,
in requests and in bytes of bodies, each tenant to as much as is free; a client that leaves takes its request along.
What may not be held, or not any longer, goes on to the decision, which finds no worker and refuses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.body_budget import BodyBudget, BodyShare
from cachefleet_controlplane.gateway.request.request import Layer, Request
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.workers.views import ServedModel

HELD_SHARE: Final = 4
"""Bodies of held requests have one part in so many of what all bodies have: requests of other models need the rest."""


class ColdStarts:
    """Requests that are held, by model; ``clock`` is monotonic, in seconds."""

    def __init__(
        self, fleet: Fleet, metrics: Metrics, *, places: int, body_bytes: int, clock: Callable[[], float]
    ) -> None:
        """Hold at most so many requests, and so many bytes of their bodies."""
        self._fleet = fleet
        self._metrics = metrics
        self._places = BodyBudget(places)
        self._bytes = BodyBudget(body_bytes)
        self._clock = clock
        self._ready: dict[str, asyncio.Event] = {}
        """Of each model that requests are held of: set when it may have a worker."""
        self._woken = False
        fleet.listen(self._wake)

    async def hold(self, request: Request) -> None:
        """Return once the model has a ready worker, its pools' coldStartSeconds are over, or it may not be held."""
        seconds = cold_start_seconds(request.model)
        if not seconds or request.cached_only or not self._fleet.lacks_workers(request.model.name):
            return
        began, trace = self._clock(), request.arrival.trace
        outcome = "gone"
        try:
            with ExitStack() as held:
                self._take(held, request)
                held.enter_context(self._fleet.demands.of(request.fleet).holding())
                trace.room_by = began + seconds
                outcome = "served" if await self._warm(request.model.name, trace.room_by) else "timeout"
        except ApiError:
            outcome = "full"
        finally:
            ended = self._clock()
            self._metrics.cold_start(outcome=outcome, seconds=ended - began)
            trace.cold_seconds = ended - began if trace.room_by else 0.0
            if trace.span is not None:
                trace.span.phase("cold_start", began, ended)

    def _take(self, held: ExitStack, request: Request) -> None:
        """Count what a request takes. ApiError where there is no room."""
        for budget, amount in ((self._places, 1), (self._bytes, request.received_bytes)):
            held.enter_context(share := BodyShare(budget, request.tenant.name))
            share.take(amount)

    async def _warm(self, model: str, until: float) -> bool:
        """Whether a model has a ready worker in time."""
        while self._fleet.lacks_workers(model):
            ready = self._ready.setdefault(model, asyncio.Event())
            try:
                async with asyncio.timeout(until - self._clock()):
                    await ready.wait()
            except TimeoutError:
                return not self._fleet.lacks_workers(model)
        return True

    def _wake(self) -> None:
        """Something of the fleet has changed: look soon, once for all changes until then."""
        if self._ready and not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._woken = False
        for model in [model for model in self._ready if not self._fleet.lacks_workers(model)]:
            self._ready.pop(model).set()


class ColdStartLayer:
    """Has requests answered, those of models without a ready worker once these have one."""

    def __init__(self, starts: ColdStarts, answer: Layer) -> None:
        self._starts = starts
        self._answer = answer

    async def __call__(self, request: Request) -> None:
        """Answer a request whose model is found."""
        await self._starts.hold(request)
        answer = self._answer(request)
        del request  # the next layers decide how much of it is kept, and how long
        await answer


def cold_start_seconds(model: ServedModel) -> int:
    """The longest time that any of a model's pools allows."""
    return max((pool.spec.admission.cold_start_seconds for pool in model.declared), default=0)
