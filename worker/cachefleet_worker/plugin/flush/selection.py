"""Which cached blocks a flush means, from what the published events tell of them: pure.

A block's *line* is the blocks from the first of its prompt up to itself. Of prompts that begin with given tokens go the
blocks that come after these, and the blocks of these tokens as far as nothing else that is cached continues from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeVar

from msgspec import Struct

from cachefleet_core.block_identity.media import Medium, Placed, media_of_blocks
from cachefleet_worker.plugin.budget.owners import owner_of
from cachefleet_worker.plugin.snapshot.ancestry import Block, Hash

TOKEN_BYTES = 4
Named = Mapping[Hash, Block]
"""Blocks whose tokens are known, also such as are not cached any more."""
T = TypeVar("T")


class Beginning(Struct, frozen=True, array_like=True):
    """The first tokens of prompts, as native u32, and their media: identifier, offset, length, by offset."""

    tokens: bytes
    media: tuple[tuple[str, int, int], ...] = ()


class Selector(Struct, frozen=True, kw_only=True):
    """What is meant: everything that is not excluded by a field. All of them hold at once."""

    salts: frozenset[str] | None = None
    """Digests of the salts under which blocks were computed."""
    adapter: str | None = None
    beginnings: tuple[Beginning, ...] | None = None
    dry_run: bool = False

    @property
    def everything(self) -> bool:
        """Whether it excludes nothing."""
        return self.salts is None and self.adapter is None and self.beginnings is None


def meant(named: Named, cached: AbstractSet[Hash], selector: Selector) -> set[Hash]:
    """The blocks that a selector means, among those ``cached`` and named."""
    found = {block_hash for block_hash in cached if block_hash in named}
    if selector.beginnings is not None:
        found &= _begun(named, cached, selector.beginnings)
    if selector.adapter is not None:
        found = {block_hash for block_hash in found if named[block_hash].traits.lora_name == selector.adapter}
    return found if selector.salts is None else _salted(named, found, selector.salts)


def _salted(named: Named, found: set[Hash], salts: AbstractSet[str]) -> set[Hash]:
    """Those of the blocks whose line begins with one of the salts, which only a line's first block tells."""
    firsts = _inherited(named, {}, lambda first: first is not None and bool(salts & set(_owners(first))))
    return {block_hash for block_hash in found if firsts[block_hash]}


def _owners(first: Block) -> Iterator[str]:
    return (owner_of(extra) for extra in first.traits.extra_keys or () if isinstance(extra, str))


def _begun(named: Named, cached: AbstractSet[Hash], beginnings: Iterable[Beginning]) -> set[Hash]:
    """The blocks of prompts that begin so, less those before an end from which something else continues.

    All blocks are gone through a few times, however many beginnings there are: this runs on the engine's thread.
    """
    found: set[Hash] = set()
    for size in {len(block.tokens) for block in named.values()}:
        ends: set[Hash] = set()
        before: list[set[Hash]] = []
        for levels in _levels(named, beginnings, size):
            ends |= levels[-1]
            before += [set() for _ in range(len(levels) - 1 - len(before))]
            for way, level in zip(before, levels[:-1], strict=False):
                way.update(level)
        under = _inherited(named, dict.fromkeys(ends, True), lambda _first: False)
        after = {block_hash for block_hash in cached if under.get(block_hash)}
        found |= after | _only_for(named, cached, after, before)
    return found


def _levels(named: Named, beginnings: Iterable[Beginning], size: int) -> Iterator[list[set[Hash]]]:
    """For each beginning its blocks by depth, one set for each of its full blocks of ``size`` bytes, if any."""
    cut = [(each, _parts(each, size)) for each in beginnings]
    after = _after(named, frozenset(part for _, parts in cut for part in parts))
    for beginning, parts in cut:
        placed = [Placed(*each) for each in beginning.media]
        media = media_of_blocks(placed, block_size=size // TOKEN_BYTES, blocks=len(parts))
        parents: Iterable[Hash | None] = [None]
        levels: list[set[Hash]] = []
        for part, here in zip(parts, media, strict=True):
            found = (one for parent in parents for one in after.get((parent, part), ()))
            levels.append({one for one in found if _media(named[one]) == here})
            parents = levels[-1]
        if levels:
            yield levels


def _parts(beginning: Beginning, size: int) -> list[bytes]:
    tokens = beginning.tokens
    return [tokens[at : at + size] for at in range(0, len(tokens) - size + 1, size)]


def _after(named: Named, wanted: AbstractSet[bytes]) -> dict[tuple[Hash | None, bytes], list[Hash]]:
    """The blocks with these tokens, by the block before them."""
    found: dict[tuple[Hash | None, bytes], list[Hash]] = {}
    for block_hash, block in named.items():
        if block.tokens in wanted:
            found.setdefault((block.parent, block.tokens), []).append(block_hash)
    return found


def _media(block: Block) -> tuple[Medium, ...]:
    """The media in a block; not those that begin in the tokens after it, which its hash may cover as well."""
    media = (extra for extra in block.traits.extra_keys or () if isinstance(extra, tuple))
    return tuple(each for each in media if each[1] * TOKEN_BYTES < len(block.tokens))


def _only_for(named: Named, cached: AbstractSet[Hash], after: AbstractSet[Hash], before: list[set[Hash]]) -> set[Hash]:
    """Of the blocks on the way to the beginnings' ends, by depth, those that nothing else cached comes right after."""
    way: set[Hash] = set().union(*before)
    needed = {named[one].parent for one in cached if one in named and one not in after and one not in way}
    for level in reversed(before):
        needed |= {named[one].parent for one in level if one in needed}
    return {one for one in way if one in cached and one not in needed}


def _inherited(named: Named, known: dict[Hash, T], of_first: Callable[[Block | None], T]) -> dict[Hash, T]:
    """A value for every block: that of the nearest ``known`` block of its line, else that of its line's first block.

    ``of_first`` is given None where the first block of a line is not known any more.
    """
    for block_hash in named:
        line: list[Hash] = []
        at, block = block_hash, named.get(block_hash)
        while at not in known:
            line.append(at)
            if block is None or block.parent is None:
                break
            at = block.parent
            block = named.get(at)
        value = known[at] if at in known else of_first(block)
        known.update(dict.fromkeys(line, value))
    return known
