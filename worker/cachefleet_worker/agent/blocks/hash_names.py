"""Blocks by the engine's hash: those held now and, bounded, those held before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cachefleet_core.block_identity.media import MediaKeyer
from cachefleet_core.block_keys import BlockKey, Namespace
from cachefleet_core.native import native_code
from cachefleet_runtime.lru import LruMap
from cachefleet_worker.agent.blocks.block_events import EngineHash


@dataclass(slots=True)
class Block:
    """One block of known identity; ``claims`` has a bit for each way in which it is held (``scope.Claim``)."""

    key: BlockKey
    parent: BlockKey
    depth: int
    keyer: MediaKeyer
    claims: int = 0


class Keyers:
    """The keyers of one contract's namespaces; the ``ready`` last used are kept."""

    def __init__(
        self,
        index_key: bytes,
        contract: str,
        *,
        block_size: int,
        lookahead: int = 0,
        ready: int,
    ) -> None:
        self._index_key = index_key
        self._contract = contract
        self._keyer = native_code().keyer
        self._keyers: LruMap[tuple[str, str], MediaKeyer] = LruMap(ready)
        self.block_size = block_size
        self.lookahead = lookahead

    def __len__(self) -> int:
        return len(self._keyers)

    def of(self, salt: str, lora: str) -> MediaKeyer:
        """The keyer for a salt and an adapter, made where it is not kept."""
        name = (salt, lora)
        keyer = self._keyers.use(name)
        if keyer is None:
            namespace = Namespace(self._contract, salt, lora)
            plain = self._keyer(self._index_key, namespace, self.block_size, self.lookahead)
            keyer = MediaKeyer(self._index_key, namespace, plain)
            self._keyers.put(name, keyer)
        return keyer


class Names:
    """Blocks by hash: ``live`` are held, at most ``remembered`` others are known.

    A hash in neither is looked up in ``beneath``.
    """

    def __init__(self, *, remembered: int, beneath: Names | None = None) -> None:
        self._max_remembered = remembered
        self._beneath = beneath
        self.live: dict[EngineHash, Block] = {}
        self._past: OrderedDict[EngineHash, Block | None] = OrderedDict()  # None: known, but not to be reported

    def above(self) -> Names:
        """An empty instance that falls back to this one."""
        return Names(remembered=self._max_remembered, beneath=self)

    def find(self, block_hash: EngineHash) -> tuple[bool, Block | None]:
        """Whether the hash is known, and its block where that may be reported."""
        block = self.live.get(block_hash)
        if block is not None:
            return True, block
        if block_hash in self._past:
            self._past.move_to_end(block_hash)
            return True, self._past[block_hash]
        if self._beneath is None:
            return False, None
        known, block = self._beneath.find(block_hash)
        return known, replace(block, claims=0) if block else None

    def hold(self, block_hash: EngineHash, block: Block) -> None:
        """Add a held block."""
        self._past.pop(block_hash, None)
        self.live[block_hash] = block

    def keep(self, block_hash: EngineHash, block: Block) -> None:
        """Remember a block that is not held as far as is known."""
        if block_hash not in self.live:
            self._remember(block_hash, block)

    def let_go(self, block_hash: EngineHash) -> None:
        """Move a held block to the remembered ones."""
        self._remember(block_hash, self.live.pop(block_hash))

    def let_go_of_all(self) -> None:
        """Move all held blocks to the remembered ones."""
        for block_hash, block in self.live.items():
            block.claims = 0
            self._past[block_hash] = block
        self.live.clear()
        self._bound()

    def mark(self, block_hashes: Iterable[EngineHash]) -> None:
        """Remember that these blocks, and so their children, are not reported."""
        for block_hash in block_hashes:
            if block_hash not in self.live:
                self._remember(block_hash, None)

    def adopt(self, other: Names) -> None:
        """Hold exactly what ``other`` holds, and remember what it knows."""
        held, self.live = self.live, other.live
        for block_hash, block in held.items():
            if block_hash not in self.live:
                block.claims = 0
                self._past[block_hash] = block
        for block_hash, known in other._past.items():
            if known is not None or block_hash not in self._past:
                self._past[block_hash] = known
        for block_hash in self.live:
            self._past.pop(block_hash, None)
        self._bound()

    def _remember(self, block_hash: EngineHash, block: Block | None) -> None:
        self._past[block_hash] = block
        self._past.move_to_end(block_hash)
        self._bound()

    def _bound(self) -> None:
        while len(self._past) > self._max_remembered:
            self._past.popitem(last=False)
