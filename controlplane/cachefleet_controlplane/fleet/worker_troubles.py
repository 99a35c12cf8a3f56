"""What the fleet knows of a worker that speaks against its answers' coming: for requests that wait on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.workers.worker import Worker

DEAD_SECONDS: Final = 2.0
"""How long an agent says that its engine has ended, or a worker is neither listed nor reported for, until its requests
are given up: two reports.
"""


class Trouble(Struct, frozen=True):
    """Why what a worker was asked may never be answered: it is not ready, at least."""

    dead_since: float | None = None
    """Since when its engine is known to have ended, or both worker and agent to be gone; on the fleet's clock."""
    suspended: bool = False
    """Its engine answers health checks, and serves nothing."""
    moves_at: float | None = None
    """It drains and answers what it has: from then on others are to go on with that, where they can."""


def trouble_of(ranks: Sequence[Worker], now: float) -> Trouble | None:
    """The trouble of a worker with these ranks, none where it is not known at all; None where it serves."""
    if not ranks:
        return Trouble(now - DEAD_SECONDS)
    dead = [since for one in ranks if (since := one.dead_since(now)) is not None and now - since >= DEAD_SECONDS]
    if len(dead) == len(ranks):
        return Trouble(max(dead))
    moves = [one.moves_at for one in ranks if one.moves_at is not None and one.draining(now)]
    if len(moves) == len(ranks):
        return Trouble(moves_at=min(moves))
    if moves or any(one.serves(now) for one in ranks):
        return None
    return Trouble(suspended=all(one.suspended(now) for one in ranks))
