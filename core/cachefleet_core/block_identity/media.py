"""Block keys of prompts with images, audio and the like: a block's key depends on the media in it as well.

An engine keys a block that has tokens of a medium by the medium's *identifier* (a digest of its content, or the name
that a client gave it) and by where it begins, relative to the block, below 0 where that is in an earlier one. So does
the *term* of a medium in the block at position ``i`` of its prompt: 64 bits, by BLAKE2b keyed with the four words of
the namespace (block_keys.py), over ``b"medium"``, ``i`` as a little-endian u64, the beginning as an i64, and the
identifier in UTF-8. The key of such a block is computed as if the key before it were that key plus the terms of the
block's media, modulo 2**64, or 1 where that is 0. Blocks without media are keyed as block_keys.py says. Where keys
cover tokens after their block, media that begin in these are the block's as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cachefleet_core.block_keys import MASK, NO_PARENT, BlockKey, BlockKeyer, Namespace, namespace_secrets, pack_keys

Medium = tuple[str, int]
"""A medium in a block: its identifier, and where it begins relative to the block, in tokens."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A medium in a prompt: its tokens are ``length`` ones from ``offset`` on."""

    identifier: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        """One past its last token."""
        return self.offset + self.length


class MediaKeyer:
    """Computes keys of prompts with media in the namespace of ``plain``, which computes those without."""

    def __init__(self, index_key: bytes, namespace: Namespace, plain: BlockKeyer) -> None:
        secrets = namespace_secrets(index_key, namespace)
        self.plain = plain
        self._root = secrets[0]
        self._key = pack_keys(secrets)

    def keys(
        self,
        tokens: Sequence[int],
        media: Sequence[Sequence[Medium]],
        parent: BlockKey = NO_PARENT,
        position: int = 0,
    ) -> list[BlockKey]:
        """As ``BlockKeyer.keys``; ``media`` has an entry for each block that has a key."""
        if not any(media):
            return self.plain.keys(tokens, parent, position)
        size, ahead, full = self.plain.block_size, self.plain.lookahead, self.plain.blocks(len(tokens))
        runs = [0, *(at for at in range(1, full) if media[at]), full] if full else []
        out: list[BlockKey] = []
        for start, end in pairwise(runs):
            before = self._moved(out[-1] if out else parent, position + start, media[start])
            out += self.plain.keys(tokens[start * size : end * size + ahead], before, position + start)
        return out

    def _moved(self, parent: BlockKey, position: int, media: Sequence[Medium]) -> BlockKey:
        """The key that a block with these media is computed from."""
        if not media:
            return parent
        total = parent or self._root
        for identifier, begins in media:
            where = position.to_bytes(8, "little") + begins.to_bytes(8, "little", signed=True)
            named = b"medium" + where + identifier.encode(errors="surrogatepass")
            total += int.from_bytes(hashlib.blake2b(named, digest_size=8, key=self._key).digest(), "little")
        return BlockKey(total & MASK or 1)


def media_of_blocks(
    placed: Sequence[Placed], *, block_size: int, blocks: int, lookahead: int = 0
) -> list[tuple[Medium, ...]]:
    """The media of each of a prompt's first blocks and ``lookahead`` tokens after it; ``placed`` is sorted by offset.

    As vLLM 0.28 to 0.33 choose them (v1/core/kv_cache_utils.py, generate_block_hash_extra_keys, and
    generate_lookahead_block_hash_extra_keys): one after the other, so that where media overlap, a block inside of the
    first names that one alone.
    """
    out: list[tuple[Medium, ...]] = []
    at = 0
    for start in range(0, blocks * block_size, block_size):
        here: list[Medium] = []
        end = start + block_size + lookahead
        while placed and placed[-1].end > start and at < len(placed) and placed[at].offset < end:
            if start < placed[at].end:
                here.append((placed[at].identifier, placed[at].offset - start))
                if end < placed[at].end:
                    break
            at += 1
        while at and placed[at - 1].end > start + block_size:
            at -= 1  # the next block has it, too
        out.append(tuple(here))
    return out
