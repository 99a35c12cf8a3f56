"""A copy of the ledger as frames: event batches as on the wire, parents before their children. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

from cachefleet_worker.plugin.snapshot.ancestry import Block, Hash, Traits
from cachefleet_worker.plugin.snapshot.resident_ledger import Place, TierCopy, Total

SLICE_BLOCKS: Final = 256
"""Blocks per frame: the work done before the engine's threads may run again."""

END: Final = b"\0\0\0\0"
_LENGTH_BYTES: Final = 4
_encode: Final = msgspec.msgpack.Encoder().encode
_TOKENS: Final = "I"


class BlockStored(Struct, tag=True, omit_defaults=True, gc=False):
    """vLLM's event of that name, field for field."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(Struct, tag=True, omit_defaults=True, gc=False):
    """vLLM's event of that name, field for field."""

    block_hashes: list[Hash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class Header(Struct, frozen=True):
    """First frame of a snapshot. ``blocks`` counts (block, tier set), ``totals`` is what the blocks must add up to."""

    boot: str
    rank: int
    sequence: int
    blocks: int
    totals: list[Total]


def framed(content: bytes) -> bytes:
    """A frame: its length as little-endian u32, then its content."""
    return len(content).to_bytes(_LENGTH_BYTES, "little") + content


def batches(copies: Iterable[TierCopy], *, rank: int, now: float, size: int = SLICE_BLOCKS) -> Iterator[bytes]:
    """The copy as event batches of at most ``size`` blocks.

    Tombstones are stored like the rest and removed again at the end: only the whole is correct.
    """
    for copy in copies:
        gone: list[Hash] = []
        ordered = parents_first(copy)
        while part := list(islice(ordered, size)):
            gone += [block_hash for block_hash, _ in part if block_hash not in copy.blocks]
            yield _encode((now, list(_stored(part, copy.place)), rank))
        for start in range(0, len(gone), size):
            yield _encode((now, [_removed(gone[start : start + size], copy.place)], rank))


def parents_first(copy: TierCopy) -> Iterator[tuple[Hash, Block]]:
    """Every block of a tier set once, after its parent, preceded by the tombstones that it needs."""
    blocks, tombstones = copy.blocks, copy.tombstones
    given: set[Hash] = set()
    for block_hash, block in blocks.items():
        if block_hash in given:
            continue
        parent = block.parent
        line = [(block_hash, block)]
        while parent is not None and parent not in given:
            above = blocks.get(parent) or tombstones.get(parent)
            if above is None:
                break
            line.append((parent, above))
            parent = above.parent
        given.update(each for each, _ in line)
        yield from reversed(line)


def _stored(part: list[tuple[Hash, Block]], place: Place) -> Iterator[BlockStored]:
    """As few events as the chains in ``part`` allow."""
    run: list[tuple[Hash, Block]] = []
    for block_hash, block in part:
        if run and not _continues(run[-1], block):
            yield _event(run, place)
            run = []
        run.append((block_hash, block))
    yield _event(run, place)


def _continues(last: tuple[Hash, Block], block: Block) -> bool:
    before = last[1]
    chained = block.parent == last[0] if block.tokens else not before.tokens
    traits, other = before.traits, block.traits
    same = (bool(before.tokens), len(before.ahead)) == (bool(block.tokens), len(block.ahead))
    return chained and same and (traits is other or _alike(traits, other))


def _alike(one: Traits, other: Traits) -> bool:
    return (one.block_size, one.lora_id, one.lora_name) == (other.block_size, other.lora_id, other.lora_name)


def _event(run: list[tuple[Hash, Block]], place: Place) -> BlockStored:
    first = run[0][1]
    tokens = array(_TOKENS, b"".join([block.tokens for _, block in run]))
    extra = [block.traits.extra_keys for _, block in run]
    return BlockStored(
        block_hashes=[block_hash for block_hash, _ in run],
        parent_block_hash=first.parent,
        token_ids=tokens.tolist(),
        block_size=first.traits.block_size,
        lora_id=first.traits.lora_id,
        medium=place.medium,
        lora_name=first.traits.lora_name,
        extra_keys=extra if any(extra) else None,
        group_idx=place.group_idx,
        kv_cache_spec_kind=place.kv_cache_spec_kind,
        kv_cache_spec_sliding_window=place.kv_cache_spec_sliding_window,
        locality=place.locality,
        ownership=place.ownership,
        lookahead_token_ids=[array(_TOKENS, block.ahead).tolist() for _, block in run] if first.ahead else None,
    )


def _removed(hashes: list[Hash], place: Place) -> BlockRemoved:
    return BlockRemoved(hashes, place.medium, place.group_idx, place.locality, place.ownership)
