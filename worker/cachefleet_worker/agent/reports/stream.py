"""One rank's report stream in one epoch: consecutively numbered frames, made from changes of the held blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec.structs import replace

from cachefleet_core.pool.adapter_reports import AdapterReport
from cachefleet_core.report_frames import (
    MAX_KEYS_PER_FRAME,
    Cleared,
    Delta,
    Hello,
    Operation,
    Phase,
    Snapshot,
    State,
    Stored,
    encode,
)
from cachefleet_core.warmth import Warmth
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.load_meter import Load

MAX_FRAME_OPERATIONS: Final = 8192
MAX_FRAME_KEYS: Final = MAX_KEYS_PER_FRAME // 2
"""Half of the protocol's limit: a frame stays far below its bound in bytes."""

NOT_WARMED: Final = Warmth()

AnyOperation = TypeVar("AnyOperation", Operation, Stored)


@dataclass(frozen=True, slots=True)
class WorkerState:
    """Fields of a State besides those of the stream."""

    phase: Phase
    load: Load
    reason: str = ""
    suspended: str = ""
    drain_seconds: float | None = None
    generation: int = 0
    warmth: Warmth = NOT_WARMED
    adapters: AdapterReport | None = None


class Stream:
    """Makes and numbers a rank's frames. Call ``deltas`` before ``snapshot`` or ``state``."""

    def __init__(self, hello: Hello, residents: Residents) -> None:
        self.hello = hello
        self.residents = residents
        self.sequence = 0
        self.disowned = False
        """The engine is withdrawn: none of its blocks are reported."""
        self.clears = 0
        """How often everything held was withdrawn at once: the engine cleared it, or it became unproven."""

    def renewed(self) -> bool:
        """Whether the Hello is another one now: a stock engine's groups are learnt from its events."""
        residents = self.residents
        before = self.hello
        self.hello = replace(before, rule=residents.rule, not_indexed=residents.unknown)
        return self.hello != before

    def deltas(self) -> list[bytes]:
        """The changes since the last call, as frames."""
        if self.disowned:
            self.residents.forget()
        frames = []
        operations = self.residents.take()
        self.clears += any(isinstance(operation, Cleared) for operation in operations)
        for part in _parts(operations):
            self.sequence += 1
            frames.append(encode(Delta(rank=self.hello.rank, sequence=self.sequence, operations=part)))
        return frames

    def opening(self) -> list[bytes]:
        """The first frames of a new connection: Hello and Snapshot."""
        return [encode(self.hello), *self.snapshot()]

    def snapshot(self) -> list[bytes]:
        """Everything held, as frames at the present number."""
        parts = list(_parts(self.residents.snapshot())) or [()]
        return [
            encode(
                Snapshot(rank=self.hello.rank, sequence=self.sequence, part=i, last=i == len(parts) - 1, chains=part)
            )
            for i, part in enumerate(parts)
        ]

    def state(self, worker_state: WorkerState, sharing: int = 0) -> bytes:
        """A State frame: number, digest and count of the held blocks, ``worker_state``, how many share their load."""
        load = worker_state.load
        return encode(
            State(
                rank=self.hello.rank,
                sequence=self.sequence,
                digest=self.residents.digest,
                held=self.residents.held,
                unkeyed=self.residents.unkeyed,
                phase=worker_state.phase,
                reason=worker_state.reason,
                suspended=worker_state.suspended,
                drain_seconds=worker_state.drain_seconds,
                running=load.running,
                waiting=load.waiting,
                waiting_tokens=load.waiting_tokens,
                blocks_total=load.blocks_total,
                blocks_free=load.blocks_free,
                blocks_idle=load.blocks_idle,
                idle_by_salt=load.idle_by_salt,
                held_by_salt=load.held_by_salt,
                preemptions=load.preemptions,
                prefill_tokens_per_second=load.prefill_tokens_per_second,
                loaded_tokens_per_second=load.loaded_tokens_per_second,
                inter_token_seconds=load.inter_token_seconds,
                prefix_queries=load.prefix_queries,
                prefix_hits=load.prefix_hits,
                generation=worker_state.generation,
                warmth=worker_state.warmth,
                sharing=sharing,
                adapters=worker_state.adapters,
            )
        )


def _parts(operations: Sequence[AnyOperation]) -> Iterator[tuple[AnyOperation, ...]]:
    """The operations in order, split so that each part fits a frame."""
    part: list[AnyOperation] = []
    keys = 0
    for operation in operations:
        size = 0 if isinstance(operation, Cleared) else len(operation.keys) // 8
        if part and (keys + size > MAX_FRAME_KEYS or len(part) >= MAX_FRAME_OPERATIONS):
            yield tuple(part)
            part, keys = [], 0
        part.append(operation)
        keys += size
    if part:
        yield tuple(part)
