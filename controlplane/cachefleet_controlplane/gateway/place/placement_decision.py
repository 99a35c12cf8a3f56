"""The decision for a request now; a preferred worker wins among equals."""

from __future__ import annotations

from functools import partial

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.routing.affinity import prefer_if_tied
from cachefleet_controlplane.routing.decision import Decision


def decide(
    fleet: Fleet,
    request: Request,
    *,
    exclude: frozenset[str] = frozenset(),
    every: bool = False,
    more: int = 0,
) -> Decision:
    """Decide now, without the workers in ``exclude`` (full names). With ``every`` score of the candidates, and with the
    ``more`` of the same pool that are next in order.
    """
    leans = bool(request.preferred) and request.preferred not in exclude
    name, every = request.model.name, every or leans
    decision = fleet.route(name, request.prompt, exclude=exclude, duty=request.duty, every=every, more=more)
    if not leans:
        return decision
    return prefer_if_tied(decision, request.preferred, partial(_without, fleet, request, exclude))


def _without(fleet: Fleet, request: Request, exclude: frozenset[str], others: frozenset[str]) -> Decision:
    return fleet.route(request.model.name, request.prompt, exclude=exclude | others, duty=request.duty)
