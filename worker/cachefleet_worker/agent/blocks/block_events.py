"""Block events of an engine rank in engine-independent form: stores, removals, resets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from cachefleet_core.block_identity.media import Medium

MAX_HASH_BYTES: Final = 64

EngineHash = int | Annotated[bytes, Meta(max_length=MAX_HASH_BYTES)]
TokenId = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
Extra = str | Medium
"""The salt; or a medium in the block."""


class BlockStored(Struct):
    """A chain of blocks stored in a medium, first to last."""

    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None
    token_ids: list[TokenId]
    block_size: Annotated[int, Meta(ge=0, le=1 << 24)]
    """0 where blocks are announced by hash alone."""
    lora_id: int | None = None
    """The adapter's revision where the engine tells it; else the engine's own number."""
    medium: str | None = None
    """GPU, or None, for the device; CPU, CPU_PINNED, STORAGE, DISK or EXTERNAL for memory below it."""
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    """For each block what identifies it besides tokens and adapter, as ``extras`` gives it."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    """The attention of the blocks' KV cache group, as ``CacheGroup.kind``."""
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    """REMOTE where another machine holds the blocks."""
    ownership: Any = None
    """Not read, as the next."""
    session_id: Any = None
    lookahead_token_ids: list[list[TokenId]] | None = None
    """The tokens after each block that its hash covers; None where it covers none."""

    @property
    def lookahead(self) -> int:
        """How many tokens after each block its hash covers; -1 where the blocks differ in that."""
        if self.lookahead_token_ids is None:
            return 0
        lengths = {len(tokens) for tokens in self.lookahead_token_ids}
        complete = len(self.lookahead_token_ids) == len(self.block_hashes)
        return lengths.pop() if complete and len(lengths) == 1 else -1

    def extras(self, index: int) -> list[Extra | None]:
        """A block's identity besides tokens and adapter, in order; None for what is neither text nor a medium."""
        if not self.extra_keys or index >= len(self.extra_keys):
            return []
        return list(self.extra_keys[index] or ())


class BlockRemoved(Struct):
    """Blocks removed from a medium; there may be one for each physical copy of a block."""

    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(Struct):
    """The whole prefix cache was reset."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a removal or a reset that could not be read."""


Event = BlockStored | BlockRemoved | AllBlocksCleared | Unreadable


class Total(Struct, frozen=True, array_like=True):
    """Number of a group's blocks on the device, and the sum of their hashes modulo 2**64."""

    group: int
    blocks: int
    digest: int
