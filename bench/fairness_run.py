"""Requests of several tenants through one simulated fleet, in the gateway's queue: by shares, or by arrival alone."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from bench.fairness_time import Part, RequestTime, StepTimes, Underway
from bench.replay_run import CONTRACT, replay_pool
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.place.fair_shares import UNDER_SHARE, Claim, Ticket
from cachefleet_controlplane.gateway.place.queue_order import WaitList
from cachefleet_controlplane.gateway.place.request_queue import PASSED_OVER
from cachefleet_controlplane.gateway.place.tenant_activity import UNBOUNDED, Bounds, TenantActivity
from cachefleet_controlplane.routing.decision import Decision, Prompt, RoutingPolicy
from cachefleet_controlplane.routing.prompt_blocks import expected_tokens
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.placement import FleetPlacement, Placed, Unplaced
from cachefleet_controlplane.simulation.simulated_run import START, SimulatedRun
from cachefleet_controlplane.simulation.simulated_scheduler import Generation, Step
from cachefleet_controlplane.simulation.simulated_worker import SimulatedWorker
from cachefleet_controlplane.simulation.simulation_job import Scenario
from cachefleet_controlplane.simulation.workload import SimulatedRequest

LINE: Final = ("default", "replay")
PLACES: Final = 256
"""As ``CACHEFLEET_QUEUE_REQUESTS`` has by default."""


@dataclass(frozen=True, slots=True)
class TenantRequest:
    """A request, and whose it is."""

    tenant: str
    request: SimulatedRequest


@dataclass(frozen=True, slots=True)
class Order:
    """How requests wait: with shares by tenant or by arrival, and what workers are sent ahead, in seconds, or of one
    tenant while others use the fleet; 0 for no bound.
    """

    name: str
    shares: bool
    ahead_seconds: float = 0.0
    requests: int = 0


class BoundedPlacement(FleetPlacement):
    """The control plane's decisions, for a request of ``tenant``, within ``bounds``."""

    bounds = UNBOUNDED
    tenant = ""

    def __init__(self, fleet: Fleet, model: str, block_size: int) -> None:
        super().__init__(fleet, model, block_size, RoutingPolicy.CACHE_AWARE)
        self.activity = TenantActivity()

    def busy(self, decision: Decision) -> bool:
        """Whether the worker chosen has been sent as much as it may be."""
        underway = self.activity.underway(decision.worker, self.tenant)
        return decision.queue_seconds > self.bounds.seconds or underway >= self.bounds.sequences


class FairnessRun(SimulatedRun):
    """One run; ``run`` once, then ``firsts``, ``answers`` and ``computed`` tell what became of requests by number.

    What the queue has no place for, or loses its place, is refused.
    """

    def __init__(self, work: Sequence[TenantRequest], setup: Setup, order: Order, *, noisy: str = "") -> None:
        """``noisy``: the tenant whose prompts are told apart in ``times``."""
        self._noisy = {one.request.number for one in work if one.tenant == noisy}
        self._tenants = {one.request.number: one.tenant if order.shares else "" for one in work}
        self._room = WaitList(PLACES)
        self._tickets: dict[Ticket, SimulatedRequest] = {}
        self._charged: dict[int, tuple[Claim, int]] = {}
        self.answers: dict[int, float] = {}
        """Seconds from a request's arrival to its answer's end."""
        self.computed: dict[int, int] = {}
        """Tokens that a request took of the engines."""
        self.times: dict[int, RequestTime] = {}
        """Where the time of a request went."""
        self._step_times = StepTimes(setup.prefill_tokens_per_second, setup.inter_token_seconds)
        self._underway: dict[str, dict[Generation, Underway]] = defaultdict(dict)
        self._began: dict[str, float] = {}
        self._order = order
        super().__init__(
            [one.request for one in work],
            replay_pool(setup, ahead_seconds=order.ahead_seconds),
            CONTRACT,
            Scenario(setup=setup, policy="cacheAware"),
        )
        model = f"{LINE[0]}/{LINE[1]}"
        self._bounded = BoundedPlacement(self._fleet.fleet, model, self._size)
        self._placement = self._bounded

    @property
    def firsts(self) -> dict[int, float]:
        """Seconds from a request's arrival to its first token."""
        return self.result.first_token

    def _arrive(self, request: SimulatedRequest) -> None:
        claim = Claim(LINE, 50, self._now, self._tenants[request.number])
        tokens = request.tokens + request.outputs
        ticket, displaced = self._room.enter(claim, blocks=tokens // self._size, tokens=tokens)
        if displaced is not None:
            lost = self._tickets.pop(displaced)
            self._lines[0].remove(lost)
            self._refuse(lost)
        if ticket is None:
            self._came += 1
            self._refuse(request)
            return
        self._tickets[ticket] = request
        super()._arrive(request)

    def _refuse(self, request: SimulatedRequest) -> None:
        self.result.refused.add(request.number)
        self._over.add(request.number)

    def _place_line(self, line: deque[SimulatedRequest]) -> None:
        while self._serve(line):
            pass

    def _serve(self, line: deque[SimulatedRequest]) -> bool:
        """Send the first request that has its turn, as the gateway's queue does."""
        for ticket in self._room.leading(LINE, 1 + PASSED_OVER):
            request = self._tickets[ticket]
            self._bounded.tenant, self._bounded.bounds = ticket.tenant, self._bounds(ticket.claim)
            placed = self._placed(request)
            if isinstance(placed, Placed):
                self._begin_request(ticket, request, placed)
                line.remove(request)
                self._send(request, placed)
                return True
            if placed is not Unplaced.BUSY:
                return False
        return False

    def _bounds(self, claim: Claim) -> Bounds:
        """As the gateway's queue has them."""
        order, shared = self._order, self._bounded.activity.shared(LINE, claim.tenant, self._now)
        bounds = Bounds(order.ahead_seconds or inf, order.requests if shared and order.requests else inf)
        return bounds.times(UNDER_SHARE) if self._room.under(claim) else bounds

    def _begin_request(self, ticket: Ticket, request: SimulatedRequest, placed: Placed) -> None:
        prompt = Prompt(tokens=request.tokens, max_tokens=request.outputs)
        tokens = expected_tokens(prompt, request.tokens - placed.predicted_tokens)
        self._charged[request.number] = ticket.claim, tokens
        self._room.began(ticket.claim, tokens)
        self._bounded.activity.seen(LINE, ticket.tenant, self._now)
        self._bounded.activity.add(placed.worker, ticket.tenant, 1)
        self._room.leave(ticket)
        del self._tickets[ticket]

    def _send(self, request: SimulatedRequest, placed: Placed) -> None:
        super()._send(request, placed)
        number, time = request.number, RequestTime()
        self.times[number] = time
        time.add(Part.GATEWAY, self._now - (START + request.at), before_first=True)
        generation = next(reversed(self._open))
        one = Underway(time, self._now, placed.predicted_tokens, number in self._noisy)
        self._underway[placed.worker][generation] = one

    def _begin(self, worker: SimulatedWorker) -> None:
        self._began[worker.name] = self._now
        super()._begin(worker)

    def _end(self, worker: SimulatedWorker, step: Step) -> None:
        self._step_times.ended(step, self._underway[worker.name], began=self._began[worker.name], now=self._now)
        super()._end(worker, step)

    def _advanced(self, generation: Generation) -> None:
        sent = self._open[generation]
        super()._advanced(generation)
        underway = self._underway[sent.placed.worker]
        if generation.said == 1:
            self._step_times.admitted(underway[generation], generation.cached_tokens)
        if generation.over:
            del underway[generation]
        if generation.over:
            number = sent.request.number
            claim, tokens = self._charged.pop(number)
            self.computed[number] = generation.prompt_tokens - generation.cached_tokens + generation.outputs
            self._room.ended(claim, self.computed[number] - tokens)
            self._bounded.activity.seen(LINE, claim.tenant, self._now)
            self._bounded.activity.add(sent.placed.worker, claim.tenant, -1)
            self.answers[number] = self._now - (START + sent.request.at)
