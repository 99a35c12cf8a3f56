"""Frames of report streams for tests."""

from collections.abc import Iterable
from typing import Any

from cachefleet_controlplane.index.frame_ingest import DeltaFrame, SnapshotFrame, read
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.report_frames import Delta, Hello, Loads, Operation, Phase, Snapshot, State, encode
from tests.controlplane.chains import digest_of, stored

CONTRACT = IndexContract(weights="tiny", tokenizer="sha256:aa", block_size=16)


def hello(worker: str = "demo-0", epoch: str = "e1", **changes: Any) -> Hello:
    fields: dict[str, Any] = {
        "worker": worker,
        "pool": "default/demo",
        "epoch": epoch,
        "endpoint": "http://127.0.0.1:9001",
        "contract": CONTRACT,
        "blocks_total": 100,
    }
    return Hello(**fields | changes)


def snapshot(sequence: int, *chains: Iterable[int], part: int = 0, last: bool = True, rank: int = 0) -> Snapshot:
    return Snapshot(rank=rank, sequence=sequence, part=part, last=last, chains=tuple(map(stored, chains)))


def delta(sequence: int, *operations: Operation, rank: int = 0) -> Delta:
    return Delta(rank=rank, sequence=sequence, operations=operations)


def sent(frame: Snapshot | Delta | State) -> SnapshotFrame | DeltaFrame | State:
    """A frame as it is received."""
    received = read(encode(frame))
    assert not isinstance(received, Hello | Loads)
    return received


def state(sequence: int = 0, pairs: Iterable[tuple[int, Any]] = (), /, **changes: Any) -> State:
    """A report of an idle worker that holds these (key, tier)."""
    pairs = list(pairs)
    fields: dict[str, Any] = {
        "sequence": sequence,
        "digest": digest_of(pairs),
        "held": len(pairs),
        "phase": Phase.READY,
        "running": 0,
        "waiting": 0,
        "waiting_tokens": 0,
        "blocks_total": 100,
        "blocks_free": 100,
    }
    return State(**fields | changes)
