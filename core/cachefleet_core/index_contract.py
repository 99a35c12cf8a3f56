"""Index contract and render profile of a worker: what block keys, and what rendered prompts, depend on.

The *index contract* decides whether a worker's blocks may be compared with its pool's; a worker whose contract
differs is excluded and the differing values are shown. The *render profile* says how a worker turns messages into
tokens; it selects the renderer of a request and excludes nobody.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec

from cachefleet_core.block_keys import KEY_VERSION, LOOKAHEAD_KEY_VERSION, MAX_LOOKAHEAD

Text = Annotated[str, msgspec.Meta(max_length=1024)]
BlockSize = Annotated[int, msgspec.Meta(ge=1, le=65536)]
Lookahead = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOOKAHEAD)]
"""Tokens after a block that its hash in the engine, and so its key, covers."""


class IndexContract(msgspec.Struct, frozen=True, kw_only=True):
    """What block keys depend on: equal contracts give equal keys for equal tokens.

    ``tokenizer`` is a digest of the token ids the engine's own tokenizer gives for a fixed probe text; ``weights``
    and ``revision`` name what the engine loaded.
    """

    weights: Text
    revision: Text = ""
    tokenizer: Text
    block_size: BlockSize
    key_version: Annotated[int, msgspec.Meta(ge=1, le=255)] = KEY_VERSION
    lookahead: Lookahead = 0

    def fingerprint(self) -> str:
        """``sha256:`` and the hex digest of the canonical JSON of all fields, less a lookahead of 0."""
        return _fingerprint(self if self.lookahead else _without_lookahead(self))


class RenderProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker turns messages into tokens; a field is empty where it is unknown.

    ``template`` is a digest of the token ids a fixed probe conversation renders to.
    """

    renderer: Text = ""
    renderer_version: Text = ""
    template: Text = ""
    tool_parser: Text = ""
    reasoning_parser: Text = ""
    options: Text = ""

    def fingerprint(self) -> str:
        """``sha256:`` and the hex digest of the canonical JSON of all fields."""
        return _fingerprint(self)


class Difference(msgspec.Struct, frozen=True):
    """A field in which a worker's contract differs from its pool's, or an engine from what its pool asks for."""

    field: Text
    expected: Text
    actual: Text

    def __str__(self) -> str:
        return f"{self.field}: pool has {self.expected!r}, worker has {self.actual!r}"


def differences(expected: IndexContract, actual: IndexContract) -> list[Difference]:
    """Every field in which two contracts differ, in field order; empty when they are equal."""
    return [
        Difference(name, str(getattr(expected, name)), str(getattr(actual, name)))
        for name in IndexContract.__struct_fields__
        if getattr(expected, name) != getattr(actual, name)
    ]


def key_version(lookahead: int) -> int:
    """The key version for a lookahead of this many tokens."""
    return LOOKAHEAD_KEY_VERSION if lookahead else KEY_VERSION


def _without_lookahead(contract: IndexContract) -> dict[str, object]:
    """A contract's fields without ``lookahead``, so that fingerprints of older releases stay."""
    return {name: getattr(contract, name) for name in IndexContract.__struct_fields__ if name != "lookahead"}


def _fingerprint(value: IndexContract | RenderProfile | dict[str, object]) -> str:
    canonical = msgspec.json.encode(value, order="sorted")
    return f"sha256:{hashlib.sha256(canonical).hexdigest()}"
