"""One turn of a conversation: what its request added to the turn before, whose bytes it shares. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Final

import msgspec

from cachefleet_core.continuation import MISMATCHES, Fingerprints, KeptPrefix, PromptCacheRef, RefusalCode

TURN_BYTES: Final = 1024
"""Bytes counted for a turn besides what it holds."""


class Api(StrEnum):
    """An API with conversations, by its path."""

    CHATS = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


@dataclass(frozen=True, slots=True, eq=False)
class Common:
    """What all turns of one conversation have in common."""

    api: Api
    fingerprints: Fingerprints
    salt: str = field(default="", repr=False)
    members: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Members of the body besides the list, as JSON: tools, instructions."""

    @property
    def size(self) -> int:
        """Bytes of the members and the salt."""
        return sum(map(len, self.members.values())) + len(self.salt.encode())


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """What a request held, as far as it is kept."""

    common: Common
    added: bytes = field(repr=False)
    """What it added: items as JSON with commas between, or packed token ids of a completion."""
    prefix_hash: str
    prefix_token_count: int
    parent: Turn | None = field(default=None, repr=False)
    handle: str = ""
    """"" where it is not kept."""

    @property
    def size(self) -> int:
        """Bytes that it takes besides its ancestors."""
        return TURN_BYTES + len(self.added) + (self.common.size if self.parent is None else 0)

    @property
    def whole(self) -> bytes:
        """What the turns up to this one added, together."""
        parts = [turn.added for turn in self.ancestry() if turn.added]
        return (b"" if self.common.api is Api.COMPLETIONS else b",").join(reversed(parts))

    @property
    def ids(self) -> array[int]:
        """Token ids of a completion."""
        return array("I", self.whole)

    @property
    def kept(self) -> KeptPrefix:
        """What is said of it."""
        return KeptPrefix(handle=self.handle, prefix_hash=self.prefix_hash, prefix_token_count=self.prefix_token_count)

    @property
    def name(self) -> bytes:
        """Digest of all that it is, equal for equal turns."""
        common = self.common
        above = self.parent.handle if self.parent else [common.api, common.fingerprints, common.salt, common.members]
        return sha256(msgspec.msgpack.encode([above, self.prefix_hash, self.added], order="sorted")).digest()

    def ancestry(self) -> Iterator[Turn]:
        """This turn, then the one before, up to the first."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.parent


def mismatch(ref: PromptCacheRef, turn: Turn, fingerprints: Fingerprints) -> RefusalCode | None:
    """Why a reference to a turn cannot be continued under ``fingerprints``; None where it can."""
    for name, code in MISMATCHES.items():
        if not getattr(ref, name) == getattr(turn.common.fingerprints, name) == getattr(fingerprints, name):
            return code
    if ref.prefix_token_count != turn.prefix_token_count:
        return RefusalCode.COUNT_MISMATCH
    return None if ref.prefix_hash == turn.prefix_hash else RefusalCode.PREFIX_HASH_MISMATCH
