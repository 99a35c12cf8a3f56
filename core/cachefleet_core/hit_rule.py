"""Which prefix of a prompt an engine serves from its cache, where its model has several KV cache groups: pure.

A layer with full attention needs all blocks of a prefix; one with a sliding window of W tokens the last
``ceil((W - 1) / B)`` (or all, of a prefix that has fewer), and one with a recurrent state the one block at its end. An
engine serves the longest prefix that all of its groups agree on. Source of the rule: vLLM 0.28 to 0.32,
``vllm/v1/core/kv_cache_coordinator.py`` (``UnitaryKVCacheCoordinator`` and ``HybridKVCacheCoordinator``,
``find_longest_cache_hit``) and ``single_type_kv_cache_manager.py`` (the same method of ``FullAttentionManager``,
``SlidingWindowManager``, ``MambaManager``), for groups of one block size, with a draft model for one of full
attention alone; the fixpoint there is the longest prefix that satisfies each group, whatever their order.
``tests/worker/plugin/test_hit_rule_pool.py`` holds it to vLLM's own manager.

Groups that need the same number of last blocks are one *window*: a block is held there where all of them hold it.
Agents report it under ``window_key``, so an index needs no further column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cachefleet_core.block_keys import NO_PARENT, BlockKey, pack_keys, splitmix64, unpack_keys

MAX_WINDOWS: Final = 4
MAX_WINDOW_BLOCKS: Final = 65_536

Window = Annotated[int, Meta(ge=1, le=MAX_WINDOW_BLOCKS)]
Held = Callable[[int, int], bool]
"""Whether, for a window of so many blocks, the block at a position of the prompt is held."""

FULL_KINDS: Final = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
SLIDING_KINDS: Final = frozenset({"sliding_window", "sliding_window_mla"})
STATE_KIND: Final = "mamba"


class HitRule(msgspec.Struct, frozen=True):
    """What a hit needs: all blocks from the first on where ``full``, and the last blocks of each window, by length.

    Of these ``dropped`` blocks at the end are computed again: one where a draft model needs it (EAGLE, MTP).
    """

    full: bool = True
    windows: Annotated[tuple[Window, ...], Meta(max_length=MAX_WINDOWS)] = ()
    dropped: Annotated[int, Meta(ge=0, le=1)] = 0

    def __post_init__(self) -> None:
        if not (self.full or self.windows):
            raise ValueError("windows: must not be empty where full is false")

    @property
    def plain(self) -> bool:
        """Whether the blocks from the first on are all that counts."""
        return self.full and not self.windows and not self.dropped


PLAIN: Final = HitRule()


class CacheGroup(msgspec.Struct, frozen=True):
    """One KV cache group of an engine that takes part in prefix caching, with vLLM's names."""

    index: Annotated[int, Meta(ge=0, le=4095)]
    kind: Annotated[str, Meta(max_length=64)] | None = None
    """None where the engine names none: full attention."""
    window: Annotated[int, Meta(ge=0)] | None = None
    """Tokens of its sliding window."""
    block_size: Annotated[int, Meta(ge=0)] = 0
    """Tokens of its blocks; 0 where that is not known."""
    dropped: Annotated[int, Meta(ge=0, le=1)] = 0
    """Blocks at a hit's end that are computed again; known for a group that is alone."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The rule of an engine's groups, and the groups whose blocks make up each part of it."""

    rule: HitRule
    full: frozenset[int]
    windows: tuple[tuple[int, frozenset[int]], ...]
    """Blocks of each window, and its groups."""
    unknown: str = ""
    """Why hits on this engine cannot be told from its blocks; "" where they can."""


def membership(groups: Iterable[CacheGroup], block_size: int) -> Membership:
    """The rule of these groups, whose blocks are all of ``block_size`` tokens."""
    full: set[int] = set()
    windows: dict[int, set[int]] = {}
    dropped = 0
    for group in sorted(groups, key=lambda group: group.index):
        if why := not_understood(group, block_size):
            return Membership(PLAIN, frozenset(), (), why)
        dropped = max(dropped, group.dropped)
        if group.kind is None or group.kind in FULL_KINDS:
            full.add(group.index)
        else:
            windows.setdefault(window_blocks(group, block_size), set()).add(group.index)
    if len(windows) > MAX_WINDOWS:
        return Membership(
            PLAIN, frozenset(), (), f"{len(windows)} kinds of windows, at most {MAX_WINDOWS} are followed"
        )
    rule = HitRule(bool(full) or not windows, tuple(sorted(windows)), dropped)
    return Membership(rule, frozenset(full), tuple((need, frozenset(windows[need])) for need in sorted(windows)))


def not_understood(group: CacheGroup, block_size: int) -> str:
    """Why hits in a group cannot be told from its blocks; "" where they can."""
    name = f"KV cache group {group.index}"
    if group.kind in SLIDING_KINDS and not group.window:
        return f"{name} has a sliding window of unknown length"
    if group.kind is not None and group.kind not in FULL_KINDS | SLIDING_KINDS | {STATE_KIND}:
        return f"{name} is of the kind {group.kind}, whose hits are not understood"
    if group.block_size not in (0, block_size):
        return f"{name} has blocks of {group.block_size} tokens, others of {block_size}"
    if group.kind in SLIDING_KINDS and (need := window_blocks(group, block_size)) > MAX_WINDOW_BLOCKS:
        return f"{name} has a window of {need} blocks, at most {MAX_WINDOW_BLOCKS} are followed"
    return ""


def window_blocks(group: CacheGroup, block_size: int) -> int:
    """Blocks at a prefix's end that a hit needs in this group: one for a state, and at least one for any window."""
    return 1 if group.kind == STATE_KIND else blocks_of_window(group.window or 1, block_size)


def blocks_of_window(tokens: int, block_size: int) -> int:
    """Last blocks that a hit needs for a sliding window of ``tokens`` tokens, the following token included."""
    return max(1, -(-(tokens - 1) // block_size))


def window_key(key: BlockKey, window: int) -> BlockKey:
    """The key under which a block is held in the window of this many blocks; that of no parent is no parent."""
    return BlockKey((key ^ _mask(window)) or 1) if key != NO_PARENT else NO_PARENT


@cache
def _mask(window: int) -> int:
    """Keys are uniformly distributed, so that any number tells a window's from all others."""
    return splitmix64(window)


def last_keys(rule: HitRule, keys: bytes) -> bytes:
    """The packed keys under which a hit on all of these packed keys is held in the rule's windows."""
    last = ((window, unpack_keys(keys[-8 * window :])) for window in rule.windows)
    return pack_keys(window_key(key, window) for window, found in last for key in found)


def hit_blocks(rule: HitRule, blocks: int, held: Held) -> int:
    """Blocks of a prompt that an engine serves from its cache.

    ``blocks`` bounds them: the held ones from the first on where ``rule.full``, and always all but the one with the
    prompt's last token, which is computed in any case.
    """
    end = blocks
    while True:
        reached = end
        for window in rule.windows:
            end = _end(window, end, held)
        if end == reached:
            return max(0, end - rule.dropped)


def _end(window: int, end: int, held: Held) -> int:
    """The last place up to ``end`` before which ``window`` blocks, or all from the first on, are held."""
    while end > window:
        probe = end - window  # lies in every window that ends after it, up to ``end``
        if not held(window, probe):
            end = probe
            continue
        right = probe + 1
        while right < end and held(window, right):
            right += 1
        left = probe
        while left > max(0, right - window) and held(window, left - 1):
            left -= 1
        if left == max(0, right - window):
            return right
        end = left - 1
    return next((at for at in range(end) if not held(window, at)), end)
