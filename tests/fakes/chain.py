"""Chained block hashes as vLLM 0.32 computes them by default (sha256 over a pickle, fixed seed)."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

MASK: Final = (1 << 64) - 1


def _sha256(value: object) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()


NONE_HASH: Final = _sha256("vllm-none-hash")


class Link:
    """One full block of a prompt and, through ``parent``, everything before it; ``ahead`` are tokens after it."""

    __slots__ = ("__weakref__", "ahead", "depth", "digest", "parent", "salt", "tokens")

    def __init__(
        self, digest: bytes, parent: Link | None, tokens: tuple[int, ...], salt: str, ahead: tuple[int, ...] = ()
    ) -> None:
        self.ahead = ahead
        self.digest = digest
        self.parent = parent
        self.tokens = tokens
        self.salt = salt
        self.depth: int = parent.depth + 1 if parent else 0

    @property
    def extra_keys(self) -> tuple[str, ...] | None:
        """As an event shows them: the salt, in the first block only."""
        return (self.salt,) if self.salt and self.parent is None else None

    def lineage(self) -> list[Link]:
        """The links from the first block to this one."""
        out: list[Link] = []
        link: Link | None = self
        while link is not None:
            out.append(link)
            link = link.parent
        return out[::-1]

    def prefix(self) -> tuple[int, ...]:
        """Every token from the start of the prompt to the end of this block."""
        return tuple(token for link in self.lineage() for token in link.tokens)


class Chains:
    """Makes links, and makes equal ones once, so that shared prefixes share memory.

    With ``lookahead`` a hash covers so many tokens after its block, as vLLM's from 0.33 on beside a draft model.
    """

    def __init__(self, block_size: int, lookahead: int = 0) -> None:
        self.block_size = block_size
        self.lookahead = lookahead
        self._known: WeakValueDictionary[bytes, Link] = WeakValueDictionary()

    def extend(self, links: list[Link], tokens: Sequence[int], salt: str) -> None:
        """Append to ``links`` the links of the full blocks of ``tokens`` that it does not have yet."""
        parent = links[-1] if links else None
        for block, ahead in self._blocks(tokens, len(links)):
            parent = self._link(parent, block, salt, ahead)
            links.append(parent)

    def _blocks(self, tokens: Sequence[int], start: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        size = self.block_size
        for end in range((start + 1) * size, len(tokens) - self.lookahead + 1, size):
            yield tuple(tokens[end - size : end]), tuple(tokens[end : end + self.lookahead])

    def _link(self, parent: Link | None, tokens: tuple[int, ...], salt: str, ahead: tuple[int, ...]) -> Link:
        extra: Any = (("cache_salt", salt),) if salt and parent is None else None
        extra = (extra, *ahead) if ahead else extra
        digest = _sha256((parent.digest if parent else NONE_HASH, tokens, extra))
        link = self._known.get(digest)
        if link is None:
            link = self._known[digest] = Link(digest, parent, tokens, salt, ahead)
        return link


def external_hash(digest: bytes, *, as_int: bool = True) -> int | bytes:
    """A block hash as events carry it: the low 8 bytes as an unsigned number, or all 32 bytes."""
    return int.from_bytes(digest, "big") & MASK if as_int else digest
