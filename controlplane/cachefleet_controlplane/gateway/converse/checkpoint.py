"""A checkpoint: what is kept of a finished turn (A1), without token ids or text (A4). Pure."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from cachefleet_core.block_keys import keyed_blocks
from cachefleet_core.continuation import Fingerprints, prefix_hash
from cachefleet_core.tenancy import TenantId

KEY_BYTES: Final = 8


class Status(StrEnum):
    """Whether the turn is one of the conversation, or one within a tool loop, which the next turn replaces (A20)."""

    ACCEPTED = "accepted"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True)
class WorkerEpoch:
    """A worker by its full name, in one epoch of its engine."""

    worker: str = ""
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What block keys were computed under; keys of different receipts cannot be compared."""

    contract: str
    """Fingerprint; "" where the fleet had none."""
    block_size: int
    salt_version: int | None
    """None where blocks are shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """The prompt of the present turn, as far as it was rendered; ``ids`` are kept no longer than its request."""

    tokens: int
    keys: bytes
    """Packed, of its leading whole blocks."""
    boundaries: tuple[int, ...]
    receipt: Receipt
    fingerprints: Fingerprints
    ids: array[int] | None = field(default=None, repr=False)
    lookahead: int = 0
    """Tokens after a block that its key covers."""

    def hash_of(self, tokens: int) -> str:
        """Return the hash of so many leading ids; "" where the ids are not at hand."""
        return "" if self.ids is None else prefix_hash(self.ids[:tokens])

    def keys_of(self, tokens: int) -> bytes:
        """Return the keys that so many leading tokens determine."""
        return self.keys[: KEY_BYTES * keyed_blocks(tokens, self.receipt.block_size, self.lookahead)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One finished turn; ``id`` is its immutable continuation id. Times are Unix seconds."""

    id: str
    conversation: str
    seq: int
    parent: str | None
    """The checkpoint that it continues; of another conversation where it is a branch."""
    response: str | None
    """Id of the turn's stored response; None where none is stored."""
    status: Status
    prefix_hash: str
    """As ``continuation.prefix_hash`` gives it; "" where the ids were not at hand."""
    prefix_tokens: int
    ends_at_boundary: bool
    """The prefix ends at a safe boundary; else it is the whole prompt."""
    prompt_tokens: int
    keys: bytes
    """Packed, of the prefix's whole blocks; of the leading ones where those are too many."""
    contract: str
    block_size: int
    salt_version: int | None
    fingerprints: Fingerprints
    worker: str
    epoch: str
    created: float
    expires: float

    @property
    def receipt(self) -> Receipt:
        """What its block keys were computed under."""
        return Receipt(self.contract, self.block_size, self.salt_version)


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of conversations; nothing of one owner is found by another."""

    tenant: TenantId
    model: str
    """ "namespace/name"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Where a new checkpoint belongs in its conversation; times are Unix seconds."""

    id: str
    conversation: str
    seq: int
    parent: str | None
    response: str | None
    status: Status
    created: float
    expires: float


def checkpoint(lineage: Lineage, fresh: Fresh, place: WorkerEpoch, *, max_keys: int) -> Checkpoint:
    """Return the checkpoint of a finished turn; its prefix ends at the last safe boundary, else with the prompt."""
    safe = max((one for one in fresh.boundaries if 0 < one <= fresh.tokens), default=0)
    tokens = safe or fresh.tokens
    return Checkpoint(
        id=lineage.id,
        conversation=lineage.conversation,
        seq=lineage.seq,
        parent=lineage.parent,
        response=lineage.response,
        status=lineage.status,
        prefix_hash=fresh.hash_of(tokens),
        prefix_tokens=tokens,
        ends_at_boundary=bool(safe),
        prompt_tokens=fresh.tokens,
        keys=fresh.keys_of(tokens)[: KEY_BYTES * max_keys],
        contract=fresh.receipt.contract,
        block_size=fresh.receipt.block_size,
        salt_version=fresh.receipt.salt_version,
        fingerprints=fresh.fingerprints,
        worker=place.worker,
        epoch=place.epoch,
        created=lineage.created,
        expires=lineage.expires,
    )
