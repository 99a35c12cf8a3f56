"""What a worker is to be selected for, and the pools whose workers may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_core.pool.worker_spec import Role


class Duty(StrEnum):
    """The task that a worker is selected for."""

    ANSWER = "answer"
    """To answer a client."""
    PREFILL = "prefill"
    """To compute a prompt for a worker that will answer."""
    RENDER = "render"
    """To render a prompt and compute nothing."""


_ROLES: Final[Mapping[Duty, frozenset[Role]]] = MappingProxyType(
    {
        Duty.ANSWER: frozenset({Role.BOTH, Role.DECODE}),
        Duty.PREFILL: frozenset({Role.PREFILL}),
        Duty.RENDER: frozenset(Role),
    }
)


def on_duty(pools: Sequence[Pool], duty: Duty) -> list[Pool]:
    """The pools whose role allows this duty."""
    return [pool for pool in pools if pool.declared.spec.role in _ROLES[duty]]


NO_ONE: Final[frozenset[str]] = frozenset()


class Selection(Struct, frozen=True, kw_only=True):
    """What is to be selected: a worker of a model for a duty, at a monotonic time.

    ``exclude`` has full names or ids of workers. ``every``: the decision is to have the scores of all candidates.
    ``more``: it is to name so many workers of the chosen one's pool that are next in order.
    """

    model: str
    policy: RoutingPolicy
    now: float
    exclude: frozenset[str] = NO_ONE
    duty: Duty = Duty.ANSWER
    every: bool = False
    more: int = 0
