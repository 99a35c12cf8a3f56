"""Which worker a simulated request is sent to: by the control plane's decisions, or by another policy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Prompt, RoutingPolicy, Verdict
from cachefleet_controlplane.simulation.workload import SimulatedRequest


class InFlight(Protocol):
    """A request in flight, as an ``InFlightRequest`` is."""

    def first_token(self) -> None: ...
    def finish(self, *, cached_tokens: int | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Placed:
    """A request's worker."""

    worker: str
    in_flight: InFlight
    predicted_tokens: int = 0
    """Tokens of its prompt that are cached there, as far as the index knows."""
    queue_seconds: float = 0.0
    """Of the worker's queue, as the decision predicts it."""


class Unplaced(Enum):
    """Why a request is sent to no worker: not yet, or never."""

    WAITS = "waits"
    BUSY = "busy"
    """There is room, but its worker has been sent as much ahead as its pool allows."""
    REFUSED = "refused"


class Placement(Protocol):
    """A routing policy."""

    def place(self, request: SimulatedRequest) -> Placed | Unplaced:
        """Where a request is sent now."""
        ...


def replica_of(request: SimulatedRequest, replicas: int) -> int:
    """The number of the replica that a request comes to."""
    chance = hashlib.sha256(request.number.to_bytes(8)).digest()
    return int.from_bytes(chance[:8]) % replicas


class ReplicasPlacement:
    """The decisions of several replicas, each for the requests that come to it."""

    def __init__(self, placements: Sequence[Placement]) -> None:
        self._placements = placements

    def place(self, request: SimulatedRequest) -> Placed | Unplaced:
        """See ``Placement``."""
        return self._placements[replica_of(request, len(self._placements))].place(request)


class FleetPlacement:
    """The control plane's own decisions, by one of its policies."""

    def __init__(
        self, fleet: Fleet, model: str, block_size: int, policy: RoutingPolicy, *, ahead_seconds: float = 0.0
    ) -> None:
        """``ahead_seconds``: of prompts to compute, beyond which a worker is sent no more; 0 for no bound."""
        self.ahead_seconds = ahead_seconds
        self._fleet = fleet
        self._model = model
        self._block_size = block_size
        self._policy = policy

    def place(self, request: SimulatedRequest) -> Placed | Unplaced:
        """See ``Placement``."""
        prompt = Prompt(
            tokens=request.tokens,
            keys=request.packed,
            block_size=self._block_size,
            max_tokens=request.outputs,
            knowledge=Knowledge.EXACT if request.keys else Knowledge.LOAD,
        )
        decision = self._fleet.route(self._model, prompt, policy=self._policy)
        if decision.verdict is Verdict.ROUTE:
            if self.busy(decision):
                return Unplaced.BUSY
            in_flight = self._fleet.begin(decision, prompt)
            return Placed(decision.worker, in_flight, decision.forecast_tokens, decision.queue_seconds)
        return Unplaced.WAITS if decision.verdict is Verdict.QUEUE else Unplaced.REFUSED

    def busy(self, decision: Decision) -> bool:
        """Whether the worker chosen has been sent as much as it may be."""
        return 0 < self.ahead_seconds < decision.queue_seconds
