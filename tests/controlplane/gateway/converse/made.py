"""Checkpoints and fresh prompts for tests."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cachefleet_controlplane.gateway.converse.checkpoint import (
    Checkpoint,
    Fresh,
    Lineage,
    Receipt,
    Status,
    WorkerEpoch,
    checkpoint,
)
from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.continuation import Fingerprints

BLOCK = 4
RECEIPT = Receipt("sha256:" + "c" * 64, BLOCK, 1)
PRINTS = Fingerprints(
    model="m",
    tokenizer_fingerprint="t",
    renderer="vllm",
    renderer_version="0.32.0",
    template_fingerprint="p",
    effective_instructions_hash="i",
    effective_tools_hash="o",
)
KEYER = BlockKeyer(b"k" * 32, Namespace(RECEIPT.contract, "salt"), BLOCK)
HERE = WorkerEpoch("default/demo/demo-0", "e0")


def fresh(ids: Sequence[int], *boundaries: int, at_hand: bool = True, **changes: Any) -> Fresh:
    made = Fresh(
        tokens=len(ids),
        keys=KEYER.packed_keys(ids),
        boundaries=boundaries,
        receipt=RECEIPT,
        fingerprints=PRINTS,
        ids=array("I", ids) if at_hand else None,
    )
    return replace(made, **changes)


def lineage(number: int = 1, *, conversation: str = "c1", parent: str | None = None, **changes: Any) -> Lineage:
    made = Lineage(
        id=f"p{number}",
        conversation=conversation,
        seq=number,
        parent=parent,
        response=None,
        status=Status.ACCEPTED,
        created=100.0,
        expires=200.0,
    )
    return replace(made, **changes)


def left(ids: Sequence[int], *boundaries: int, max_keys: int = 1000, **changes: Any) -> Checkpoint:
    """What a turn with this prompt leaves."""
    made = checkpoint(lineage(), fresh(ids, *boundaries), HERE, max_keys=max_keys)
    return replace(made, **changes)
