"""Which of an engine's blocks are reported: pure."""

from __future__ import annotations

from typing import Final

from cachefleet_core.block_keys import Tier
from cachefleet_worker.agent.wire.kv_events import BlockRemoved, BlockStored

_TIERS: Final = {None: Tier.DEVICE, "GPU": Tier.DEVICE, "CPU": Tier.HOST}
_FULL_ATTENTION: Final = frozenset({"full_attention", "mla_attention", "sink_full_attention"})


class Scope:
    """The reported KV cache group: the first full-attention one seen; 0 where the engine names no kinds."""

    def __init__(self, group: int | None = None) -> None:
        self._group = group

    @property
    def group(self) -> int:
        """Index of the reported group; 0 before any was seen."""
        return self._group or 0

    def copy(self) -> Scope:
        """A scope with the same group, for a draft."""
        return Scope(self._group)

    def covers_store(self, event: BlockStored) -> bool:
        """Whether a store is of the reported group; the first full-attention one sets the group."""
        group = event.group_idx or 0
        if event.kv_cache_spec_kind is None:
            return group == (self._group or 0)
        if event.kv_cache_spec_kind not in _FULL_ATTENTION:
            return False
        if self._group is None:
            self._group = group
        return group == self._group

    def covers_removal(self, event: BlockRemoved) -> bool:
        """Whether a removal is of the reported group, or names none."""
        return event.group_idx is None or event.group_idx == (self._group or 0)


def tier_of(event: BlockStored | BlockRemoved) -> Tier | None:
    """The tier of an event's medium; None where it is not memory of this worker."""
    return None if event.locality == "REMOTE" else _TIERS.get(event.medium)


def salt_of(event: BlockStored) -> str:
    """The cache salt of a chain that starts a prompt; "" for none."""
    rest = _beyond_lora(event, 0)
    return (rest[0] or "") if len(rest) == 1 else ""


def usable_blocks(event: BlockStored, depth: int) -> int:
    """Number of leading blocks identified by tokens, LoRA name and (a prompt's first block) salt alone.

    ``depth`` is the position, in blocks, of the event's first one.
    """
    for index in range(len(event.block_hashes)):
        rest = _beyond_lora(event, index)
        salted = depth + index == 0 and len(rest) == 1 and rest[0] is not None
        if rest and not salted:
            return index
    return len(event.block_hashes)


def _beyond_lora(event: BlockStored, index: int) -> list[str | None]:
    extras = event.extras(index)
    return extras[1:] if event.lora_name and extras and extras[0] == event.lora_name else extras
