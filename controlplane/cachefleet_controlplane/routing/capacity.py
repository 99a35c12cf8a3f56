"""How many blocks of a worker a new request may take. Pure.

All numbers are blocks. From a worker's last report: T in all (one of which vLLM keeps for itself), F free, idle cached
ones included, I idle cached ones. From this replica: S, what requests sent since the report take of F; C, what all its
open requests will have filled in the end (``reservations``); G, what those needed that ended since the report.

    free     = min(F - S, T - 1 - C)
    reserve  = ceil((T - 1) * minFreeBlockPercent / 100)
    required = N - shared
    shared   = min(max(0, H - I - G), T - 1 - F)

with N all blocks of the request and H those of its prompt that the index says are held. It has room where
``required <= free - reserve``.

*Free.* ``F - S`` counts everybody's requests as they are now; ``T - 1 - C`` counts this replica's alone, with the
output they have yet to produce and whatever the report came too early for. Each can only be too high by what the other
counts, so the lower holds. What other replicas' requests have yet to produce is in neither: the reserve is for that.

*Shared.* A held block is idle or in use. An idle one is one of the F, and using it takes it from them: no more than I
of the H can be idle. The others are in use, and sharing them takes nothing. H is of now and I of the report: a block
that became idle in between was in use then, and F has not grown by it yet, so this stays true except for blocks stored
since the report by requests that have ended, at most G of them. No more than was in use can be shared.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from cachefleet_controlplane.routing.reservations import BlockReservations
from cachefleet_core.report_frames import State

OWN_BLOCKS: Final = 1
"""The null block, which vLLM counts and never allocates."""


class Capacity(Struct, frozen=True):
    """The blocks of one worker for new requests; symbols as in the module's docstring."""

    total: int
    """Blocks that requests can have, T - 1."""
    free: int
    """Net of the reserve; not below 0."""
    reserve: int
    idle: int
    """Held blocks that may be idle, I + G."""
    used: int
    """In use at the report, T - 1 - F."""

    @classmethod
    def of(
        cls, state: State, *, sent: int, ended: int, reservations: BlockReservations, percent: int
    ) -> Capacity | None:
        """From a report and this replica's own requests; None where the engine does not tell its number of blocks.

        ``sent`` is S, ``ended`` is G, ``percent`` the pool's minFreeBlockPercent.
        """
        if not state.blocks_total:
            return None
        total = max(0, state.blocks_total - OWN_BLOCKS)
        reserve = -(-total * percent // 100)
        free = min(state.blocks_free - sent, total - reservations.blocks)
        idle = state.blocks_free if state.blocks_idle is None else state.blocks_idle
        return cls(total, max(0, free - reserve), reserve, idle + ended, max(0, total - state.blocks_free))

    def shared(self, held: int) -> int:
        """How many of ``held`` blocks of a prompt are in use for certain."""
        return certainly_used(held, idle=self.idle, used=self.used)


def certainly_used(held: int, *, idle: int, used: int) -> int:
    """How many of ``held`` blocks are in use for certain, with at most ``idle`` idle and ``used`` in use."""
    return min(max(0, held - idle), used)
