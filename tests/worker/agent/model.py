"""A plain model of one engine's block pool and of its event publisher, to hold the agent's pure parts against."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from dataclasses import dataclass, field

import msgspec

from cachefleet_core.block_keys import NO_PARENT, BlockKey, BlockKeyer, Namespace
from cachefleet_worker.plugin.snapshot.event_batches import BlockRemoved, BlockStored, batches
from cachefleet_worker.plugin.snapshot.publisher_proxy import Heartbeat, Mark
from cachefleet_worker.plugin.snapshot.resident_ledger import ResidentLedger

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


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


@dataclass
class ModelEngine:
    """Publishes what it does to its pool; a block may have several physical copies, each removed by an event.

    With ``plugin`` only the last copy's removal is published, and there are marks and snapshots.
    """

    buffer_steps: int = 1000
    as_maps: bool = True
    plugin: bool = False
    boot: str = "boot"
    ledger: ResidentLedger = field(default_factory=ResidentLedger)
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
        if self.plugin and self.copies[block]:
            return
        self._claimed.discard(block.key)
        self._add("BlockRemoved", block_hashes=[block.hash], medium="GPU")

    def clear(self) -> None:
        self.copies.clear()
        self._claimed.clear()
        self._add("AllBlocksCleared")

    def publish(self) -> tuple[int, bytes]:
        """End the step: what it did, numbered."""
        payload = msgspec.msgpack.encode([float(self.seq + 1), self._events, 0])
        if self.plugin:
            self.ledger.apply(msgspec.convert(self._events, list[BlockStored | BlockRemoved | AllBlocksCleared]))
        self._events = []
        return self._number(payload)

    def heartbeat(self) -> tuple[int, bytes]:
        """An empty batch with the mark of what was published before it."""
        mark = Mark(self.boot, self.ledger.totals())
        truth = self.truths.get(self.seq, frozenset())
        batch = self._number(msgspec.msgpack.encode(Heartbeat(float(self.seq + 1), [], 0, mark)))
        self.truths[self.seq] = self.claims[self.seq] = truth
        return batch

    def snapshot(self) -> tuple[int, list[bytes]]:
        """Everything resident as batches, with the number it is so at."""
        return self.seq, list(batches(self.ledger.copy(), rank=0, now=0.0, size=3))

    def _number(self, payload: bytes) -> tuple[int, bytes]:
        self.seq += 1
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
