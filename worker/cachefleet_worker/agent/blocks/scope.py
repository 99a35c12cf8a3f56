"""Which of an engine's blocks are reported: pure.

An engine with the worker plugin tells its KV cache groups before anything else; of a stock one they are learnt from its
events. What counts as held, a *claim*, is a block held in memory of one kind: on the device in all full-attention
groups, there in all groups of one window (``hit_rule``), or below it: in the host's memory or on a disk, which
are one tier.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cachefleet_core.block_keys import BlockKey, Tier
from cachefleet_core.hit_rule import CacheGroup, HitRule, Membership, membership, window_key
from cachefleet_worker.agent.blocks.block_events import BlockRemoved, BlockStored

_DEVICE: Final = "GPU"
_BELOW: Final = frozenset({"CPU", "CPU_PINNED", "STORAGE", "DISK", "EXTERNAL"})
"""Media whose blocks are loaded instead of computed: the host's memory and, counted with it, disks."""
_NO_GROUP: Final = frozenset[int]()


@dataclass(frozen=True, slots=True)
class Claim:
    """One way in which a block can be held; ``bit`` stands for it in ``Block.claims``."""

    bit: int
    tier: Tier
    groups: frozenset[int]
    """The groups that must all hold it."""
    window: int = 0
    """Blocks of the window; 0 for full attention."""

    def key(self, key: BlockKey) -> BlockKey:
        """The key under which a block is reported."""
        return window_key(key, self.window) if self.window else key


class Scope:
    """The engine's groups, and what is reported of them. Groups are learnt from events where none are passed."""

    def __init__(self, block_size: int, groups: Iterable[CacheGroup] = ()) -> None:
        self._block_size = block_size
        self._groups = {group.index: group for group in groups}
        self._published = bool(self._groups)
        self._sum_up()

    def copy(self) -> Scope:
        """A scope with the same groups, for a draft."""
        scope = Scope(self._block_size, self._groups.values())
        scope._published = self._published
        return scope

    @property
    def rule(self) -> HitRule:
        """What a hit needs."""
        return self._members.rule

    @property
    def unknown(self) -> str:
        """Why nothing is reported; "" where hits can be told from blocks."""
        return self._members.unknown

    @property
    def full(self) -> frozenset[int]:
        """The full-attention groups."""
        return self._members.full

    @property
    def groups(self) -> frozenset[int]:
        """The groups whose blocks count."""
        return self._followed

    def names(self, group: int) -> bool:
        """Whether a group's events name blocks: full attention's, or where there is none, any group's."""
        return group in self.full or not self.full

    def learn(self, event: BlockStored) -> bool:
        """Note the group of a store; whether that changed what is reported."""
        index = event.group_idx or 0
        if self._published or index in self._groups:
            return False
        before = self._members
        self._groups[index] = CacheGroup(
            index, event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window, event.block_size
        )
        self._sum_up()
        return self._members != before

    def ignored(self, event: BlockStored, tier: Tier | None) -> str:
        """Why the blocks of a store are not reported; "" where they may be.

        Below the device groups are often not told; only full attention's blocks are part of a claim there.
        """
        if tier is None:
            return "other_medium"
        if tier is Tier.DEVICE:
            return "" if (event.group_idx or 0) in self._followed else "other_group"
        group = _NO_GROUP if event.group_idx is None else frozenset({event.group_idx})
        return "" if any(group <= claim.groups for claim in self.in_tier[tier]) else "other_group"

    def removed_from(self, event: BlockRemoved) -> frozenset[int]:
        """The groups that a removal is of: all where it names none."""
        if event.group_idx is None:
            return self._followed
        return frozenset({event.group_idx}) & self._followed

    def _sum_up(self) -> None:
        members = membership(self._groups.values(), self._block_size)
        self._members: Membership = members
        windows = frozenset(group for _, groups in members.windows for group in groups)
        self._followed = _NO_GROUP if members.unknown else members.full | windows or frozenset({0})
        full = members.full or (_NO_GROUP if windows or members.unknown else frozenset({0}))
        host = [Claim(2, Tier.HOST, frozenset({min(full)}))] if full else []
        device = [Claim(1, Tier.DEVICE, full)] if full else []
        device += [Claim(4 << at, Tier.DEVICE, groups, need) for at, (need, groups) in enumerate(members.windows)]
        self.in_tier: dict[Tier, list[Claim]] = {Tier.DEVICE: device, Tier.HOST: host}
        self.claims: tuple[Claim, ...] = (*device, *host)


def medium_of(event: BlockStored | BlockRemoved) -> str:
    """The medium of an event in capitals, as most connectors write it; the device where it names none."""
    return (event.medium or _DEVICE).upper()


def tier_of(event: BlockStored | BlockRemoved) -> Tier | None:
    """The tier of an event's medium; None where it is not known, or another machine's."""
    medium = medium_of(event)
    if event.locality == "REMOTE":
        return None
    return Tier.DEVICE if medium == _DEVICE else Tier.HOST if medium in _BELOW else None
