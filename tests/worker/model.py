"""A plain model of one engine's block pool and of its event publisher, to hold the agent's pure parts against."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from dataclasses import dataclass, field

import msgspec

from cachefleet_core.blocks import NO_PARENT, BlockKey, BlockKeyer, Namespace

INDEX_KEY = bytes(range(32))
CONTRACT = "sha256:contract"
BLOCK_SIZE = 2


@dataclass(frozen=True)
class Block:
    """A full block of a prompt: its tokens and everything before it."""

    tokens: tuple[int, ...]
    parent: Block | None = None
    salt: str = ""

    @property
    def hash(self) -> int:
        text = repr((self.tokens, self.parent.hash if self.parent else None, self.salt if not self.parent else None))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    @property
    def chain(self) -> list[Block]:
        return [*(self.parent.chain if self.parent else []), self]

    @property
    def key(self) -> BlockKey:
        chain = self.chain
        keyer = BlockKeyer(INDEX_KEY, Namespace(CONTRACT, chain[0].salt), BLOCK_SIZE)
        return keyer.keys([token for block in chain for token in block.tokens])[-1]


@dataclass
class ModelEngine:
    """Publishes what it does to its pool; a block may have several physical copies, each removed by an event."""

    buffer_steps: int = 1000
    as_maps: bool = True
    copies: Counter[Block] = field(default_factory=Counter)
    known: list[Block] = field(default_factory=list)
    seq: int = -1
    buffer: deque[tuple[int, bytes]] = field(default_factory=deque)
    truths: dict[int, frozenset[BlockKey]] = field(default_factory=dict)
    claims: dict[int, frozenset[BlockKey]] = field(default_factory=dict)
    _claimed: set[BlockKey] = field(default_factory=set)
    _events: list[object] = field(default_factory=list)

    def held(self) -> list[Block]:
        return [block for block, count in self.copies.items() if count]

    def truth(self) -> frozenset[BlockKey]:
        return frozenset(block.key for block in self.held())

    def store(self, blocks: list[Block]) -> None:
        """Fill new physical blocks with a chain."""
        for block in blocks:
            self.copies[block] += 1
            if block not in self.known:
                self.known.append(block)
        self._stored(blocks)

    def reuse(self, block: Block) -> None:
        """Announce a chain that is held again, without changing anything."""
        self._stored(block.chain)

    def remove(self, block: Block) -> None:
        self.copies[block] -= 1
        self._claimed.discard(block.key)
        self._add("BlockRemoved", block_hashes=[block.hash], medium="GPU")

    def clear(self) -> None:
        self.copies.clear()
        self._claimed.clear()
        self._add("AllBlocksCleared")

    def publish(self) -> tuple[int, bytes]:
        """End the step: what it did, numbered."""
        self.seq += 1
        payload = msgspec.msgpack.encode([float(self.seq), self._events, 0])
        self._events = []
        self.buffer.append((self.seq, payload))
        while len(self.buffer) > self.buffer_steps:
            self.buffer.popleft()
        self.truths[self.seq] = self.truth()
        self.claims[self.seq] = frozenset(self._claimed)
        return self.seq, payload

    def replay(self, start: int) -> list[tuple[int, bytes]]:
        return [(seq, payload) for seq, payload in self.buffer if seq >= start]

    def _stored(self, blocks: list[Block]) -> None:
        self._claimed.update(block.key for block in blocks)
        first = blocks[0]
        extra = [[first.salt] if first.salt and not first.parent else None, *([None] * (len(blocks) - 1))]
        self._add(
            "BlockStored",
            block_hashes=[block.hash for block in blocks],
            parent_block_hash=first.parent.hash if first.parent else None,
            token_ids=[token for block in blocks for token in block.tokens],
            block_size=BLOCK_SIZE,
            lora_id=None,
            medium="GPU",
            lora_name=None,
            extra_keys=extra,
        )

    def _add(self, tag: str, **fields: object) -> None:
        self._events.append({"type": tag, **fields} if self.as_maps else [tag, *fields.values()])


def keys_of(tokens: list[int], salt: str = "", lora: str = "") -> list[BlockKey]:
    return BlockKeyer(INDEX_KEY, Namespace(CONTRACT, salt, lora), BLOCK_SIZE).keys(tokens, NO_PARENT)
