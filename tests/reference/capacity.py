"""How many blocks of a worker a new request may take: ``Room`` of ``native/src/plane/workers.rs``."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from cachefleet_controlplane.routing.throughput import OWN_BLOCKS
from cachefleet_core.report_frames import State


class Reserved(Protocol):
    """Blocks that requests in flight will fill."""

    @property
    def blocks(self) -> int: ...


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
    def of(cls, state: State, *, sent: int, ended: int, reservations: Reserved, percent: int) -> Capacity | None:
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
