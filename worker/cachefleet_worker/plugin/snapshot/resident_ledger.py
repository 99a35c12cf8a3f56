"""The resident blocks, exactly as the published events tell: pure.

A *tier set* holds the blocks of one KV cache group in one medium: for each block hash what an agent needs to name the
block: parent, token ids, and the rest of its identity. Blocks of a window or a state are there by hash alone, where
full attention's blocks have the same hashes; in a model without full attention one group's are there whole.

A block removed from every tier set while blocks after it remain is kept as a *tombstone*: without it those could not be
named. It is in no copy's count, and tombstones are bounded. Of the named group a few that nothing comes after yet are
kept as *leaves*, for a prefill of which only the last blocks will be cached.

Memory: one object per block without a garbage collector's header, its tokens packed, the rest shared.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from msgspec import Struct

from cachefleet_core.digest import engine_number
from cachefleet_core.hit_rule import FULL_KINDS
from cachefleet_worker.plugin.snapshot.ancestry import Block, Family, Hash, Traits

DEVICE: Final = frozenset({None, "GPU"})
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_SHARED_TRAITS: Final = 4096
_LEAVES: Final = 4096


class Place(Struct, frozen=True):
    """Group and medium of a tier set, in the terms of vLLM's events."""

    group_idx: int | None
    medium: str | None
    locality: str | None = None
    ownership: str | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None

    @property
    def group(self) -> int:
        """Index of the KV cache group; 0 where the events name none."""
        return self.group_idx or 0

    @property
    def on_device(self) -> bool:
        """Whether it is this worker's device memory."""
        return self.medium in DEVICE and self.locality != "REMOTE"

    @property
    def full(self) -> bool:
        """Whether its blocks' tokens can line up with their hashes (full attention)."""
        return self.kv_cache_spec_kind is None or self.kv_cache_spec_kind in FULL_KINDS


class Total(Struct, frozen=True, array_like=True):
    """Number of a group's blocks on the device, and the sum of their hashes modulo 2**64."""

    group: int
    blocks: int
    digest: int


@dataclass(frozen=True, slots=True)
class TierCopy:
    """A copy of one tier set, and the tombstones that its blocks may need."""

    place: Place
    blocks: dict[Hash, Block]
    tombstones: dict[Hash, Block]


@dataclass(slots=True)
class _TierSet:
    place: Place
    family: Family
    blocks: dict[Hash, Block] = field(default_factory=dict)
    digest: int = 0


class ResidentLedger:
    """Apply every published event in order. ``max_tombstones`` bounds the tombstones of each group.

    ``named`` is the group whose blocks' tokens are kept besides those of full attention.

    Events are vLLM's own objects, distinguished by class name; unknown ones change nothing.
    """

    def __init__(self, *, max_tombstones: int = 262_144, named: int | None = None) -> None:
        self._max_tombstones = max_tombstones
        self._named = named
        self._families: dict[int, Family] = {}
        self._tier_sets: dict[tuple[Any, ...], _TierSet] = {}
        self._traits: dict[Traits, Traits] = {}

    def __len__(self) -> int:
        return sum(len(tier.blocks) for tier in self._tier_sets.values())

    def apply(self, events: Iterable[Any]) -> None:
        """Apply published events, in order."""
        handlers = self._HANDLERS
        for event in events:
            handler = handlers.get(type(event).__name__)
            if handler is not None:
                handler(self, event)

    def totals(self) -> list[Total]:
        """Totals of each group on the device."""
        return [
            Total(tier.place.group, len(tier.blocks), tier.digest & MASK)
            for tier in self._tier_sets.values()
            if tier.place.on_device
        ]

    def device_hashes(self) -> set[tuple[int, Hash]]:
        """(group, hash) of every block on the device."""
        tier_sets = (tier for tier in self._tier_sets.values() if tier.place.on_device)
        return {(tier.place.group, block_hash) for tier in tier_sets for block_hash in tier.blocks}

    def named(self) -> dict[Hash, Block]:
        """Every block whose tokens are known, also those that are kept for what comes after them alone."""
        found: dict[Hash, Block] = {}
        for family in self._families.values():
            for part in (family.leaves, family.tombstones, *(tier.blocks for tier in family.tier_sets)):
                found.update((block_hash, block) for block_hash, block in part.items() if block.tokens)
        return found

    def copy(self) -> list[TierCopy]:
        """Copies of all tier sets; costs the copying of their dictionaries."""
        tombstones = {group: family.tombstones.copy() for group, family in self._families.items()}
        return [
            TierCopy(tier.place, tier.blocks.copy(), tombstones[tier.place.group]) for tier in self._tier_sets.values()
        ]

    # Events

    def _stored(self, event: Any) -> None:
        tier = self._tier_set(event)
        hashes: Sequence[Hash] = event.block_hashes
        if not hashes or all(block_hash in tier.blocks for block_hash in hashes):
            return
        if not event.token_ids or not tier.place.on_device:
            self._stored_by_hash(tier, event)
            return
        tokens = _packed(event) if tier.place.full or tier.place.group == self._named else b""
        size, ahead = len(tokens) // len(hashes), _ahead(event)
        plain, extras = self._shared(event, None), event.extra_keys
        blocks, family = tier.blocks, tier.family
        children, quick = family.children, not family.tombstones and not family.leaves
        parent = event.parent_block_hash if size else None
        for index, block_hash in enumerate(hashes):
            if block_hash not in blocks:
                traits = self._shared(event, extras[index]) if extras and extras[index] else plain
                own, after = tokens[index * size : index * size + size], ahead[index] if ahead and size else b""
                blocks[block_hash] = Block(parent, own, traits, after)
                tier.digest += engine_number(block_hash)
                if quick and parent is not None:
                    children[parent] = children.get(parent, 0) + 1
                elif not quick and not family.counted(block_hash) and parent is not None:
                    family.link(parent)
            parent = block_hash if size else None

    def _stored_by_hash(self, tier: _TierSet, event: Any) -> None:
        """Below the device the hash alone counts: connectors leave out what the device told of the block."""
        family, unknown = tier.family, Block(None, b"", self._shared(event, None))
        for block_hash in event.block_hashes:
            if block_hash in tier.blocks:
                continue
            block = tier.blocks[block_hash] = family.find(block_hash) or unknown
            tier.digest += engine_number(block_hash)
            if not family.counted(block_hash) and block.parent is not None:
                family.link(block.parent)

    def _removed(self, event: Any) -> None:
        tier = self._tier_sets.get(_key(event))
        if tier is None:
            return
        for block_hash in event.block_hashes:
            block = tier.blocks.pop(block_hash, None)
            if block is not None:
                tier.digest -= engine_number(block_hash)
                tier.family.leave(block_hash, block)

    def _cleared(self, _event: Any) -> None:
        for tier in self._tier_sets.values():
            tier.blocks, tier.digest = {}, 0
        for family in self._families.values():
            family.clear()

    # Lookup

    def _tier_set(self, event: Any) -> _TierSet:
        key = _key(event)
        tier = self._tier_sets.get(key)
        if tier is None:
            leaves = _LEAVES if key[0] == self._named else 0
            family = self._families.setdefault(key[0], Family(self._max_tombstones, leaves))
            tier = self._tier_sets[key] = _TierSet(_place(event), family)
            family.tier_sets.append(tier)
        return tier

    def _shared(self, event: Any, extra_keys: Sequence[Any] | None) -> Traits:
        """One object for all blocks with the same traits."""
        traits = Traits(
            event.block_size, event.lora_id, event.lora_name, None if extra_keys is None else tuple(extra_keys)
        )
        try:
            shared = self._traits.setdefault(traits, traits)
        except TypeError:  # an extra key of a later release that is not hashable
            return traits
        if len(self._traits) > _SHARED_TRAITS:
            self._traits.clear()
        return shared

    _HANDLERS: ClassVar[dict[str, Callable[[ResidentLedger, Any], None]]] = {
        "BlockStored": _stored,
        "BlockRemoved": _removed,
        "AllBlocksCleared": _cleared,
    }


def _key(event: Any) -> tuple[Any, ...]:
    return (event.group_idx or 0, event.medium, event.locality, getattr(event, "ownership", None))


def _place(event: Any) -> Place:
    return Place(
        event.group_idx,
        event.medium,
        event.locality,
        getattr(event, "ownership", None),
        event.kv_cache_spec_kind,
        event.kv_cache_spec_sliding_window,
    )


def _packed(event: Any) -> bytes:
    """The event's token ids, packed; b"" where they, or the tokens after each block, do not line up with its hashes."""
    if len(event.token_ids) != len(event.block_hashes) * event.block_size:
        return b""
    ahead = getattr(event, "lookahead_token_ids", None)
    if ahead is not None and len(ahead) != len(event.block_hashes):
        return b""
    try:
        return array("I", event.token_ids).tobytes()
    except (OverflowError, TypeError):  # placeholders instead of token ids
        return b""


def _ahead(event: Any) -> list[bytes]:
    """The tokens after each block that its hash covers, packed; none where it covers none."""
    try:
        return [array("I", tokens).tobytes() for tokens in getattr(event, "lookahead_token_ids", None) or ()]
    except (OverflowError, TypeError):  # placeholders instead of token ids
        return []
