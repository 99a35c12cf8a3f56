"""Binary answer of ``/v1/fleet/keys``: for each prompt its length, safe boundaries and block keys (pure).

All numbers are little-endian. A document begins with

    4 bytes  b"CFPK"
    u16      version, 1
    u16      flags; bit 0: token ids are included
    u32      number of prompts

and each prompt follows as

    u32      tokens
    u32      block size, in tokens
    u32      number of safe boundaries
    u32      number of block keys
    u32      number of token ids: all tokens, or 0
    u32[]    safe boundaries: counts of leading tokens, ascending
    u64[]    block keys: of the leading full blocks that have one
    u32[]    token ids

A document ends with its last prompt. ``decode`` returns the prompts of a valid one, or raises PromptKeysError.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from cachefleet_core.block_keys import unpack_keys

MEDIA_TYPE: Final = "application/vnd.cachefleet.prompt-keys"
KEYS_PATH: Final = "/v1/fleet/keys"
TOKEN_HEADER: Final = "x-cachefleet-token"  # noqa: S105 (the name of a header)
"""Header with the worker key."""
MAGIC: Final = b"CFPK"
VERSION: Final = 1
MAX_PROMPTS: Final = 4096
MAX_TOKENS: Final = 1 << 26
MAX_BLOCK_SIZE: Final = 65_536
_WITH_IDS: Final = 1
_HEADER: Final = struct.Struct("<4sHHI")
_PROMPT: Final = struct.Struct("<5I")
_ZERO: Final = bytes(8)


@lru_cache
def keys_query(contract: str, block_size: int, lookahead: int = 0) -> str:
    """The query of KEYS_PATH for keys under a contract, with block size and lookahead, which its fingerprint hides."""
    ahead = f"&lookahead={lookahead}" if lookahead else ""
    return f"contract={contract}&block_size={block_size}{ahead}"


class PromptKeysError(ValueError):
    """Bytes that are no valid document; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class PromptKeys:
    """One rendered prompt."""

    tokens: int
    block_size: int
    boundaries: tuple[int, ...] = ()
    """Where a prefix may end, as counts of leading tokens; proposals, to be checked against the next turn's ids."""
    keys: bytes = b""
    """As ``pack_keys`` packs them."""
    ids: bytes = b""
    """As ``pack_tokens`` packs them; empty where they were not asked for."""


def encode(prompts: Sequence[PromptKeys], *, ids: bool = False) -> bytes:
    """The document of these prompts, with token ids where ``ids``. OverflowError for a boundary that does not fit."""
    parts = [_HEADER.pack(MAGIC, VERSION, _WITH_IDS if ids else 0, len(prompts))]
    for prompt in prompts:
        written = prompt.ids if ids else b""
        counts = (len(prompt.boundaries), len(prompt.keys) // 8, len(written) // 4)
        parts.append(_PROMPT.pack(prompt.tokens, prompt.block_size, *counts))
        parts += [_pack(prompt.boundaries), prompt.keys, written]
    return b"".join(parts)


def decode(data: bytes) -> list[PromptKeys]:
    """The prompts of a document, in the request's order, or PromptKeysError."""
    if len(data) < _HEADER.size:
        raise PromptKeysError(f"{len(data)} bytes are less than a header")
    magic, version, flags, count = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise PromptKeysError(f"not a {MAGIC.decode()} document of version {VERSION}")
    if flags & ~_WITH_IDS or count > MAX_PROMPTS:
        raise PromptKeysError(f"flags {flags:#x} or {count} prompts")
    prompts: list[PromptKeys] = []
    position = _HEADER.size
    for _ in range(count):
        prompt, position = _decode_prompt(data, position, with_ids=bool(flags & _WITH_IDS))
        prompts.append(prompt)
    if position != len(data):
        raise PromptKeysError(f"{len(data) - position} bytes after the last prompt")
    return prompts


def _decode_prompt(data: bytes, position: int, *, with_ids: bool) -> tuple[PromptKeys, int]:
    if len(data) - position < _PROMPT.size:
        raise PromptKeysError("a prompt breaks off")
    tokens, block_size, boundaries, keys, ids = _PROMPT.unpack_from(data, position)
    _check_counts(tokens, block_size, boundaries=boundaries, keys=keys)
    if ids != (tokens if with_ids else 0):
        raise PromptKeysError(f"{ids} token ids for {tokens} tokens")
    first = position + _PROMPT.size
    second = first + 4 * boundaries
    third = second + 8 * keys
    end = third + 4 * ids
    if end > len(data):
        raise PromptKeysError("a prompt breaks off")
    read = _boundaries(data[first:second], tokens), _keys(data[second:third]), data[third:end]
    return PromptKeys(tokens, block_size, *read), end


def _check_counts(tokens: int, block_size: int, *, boundaries: int, keys: int) -> None:
    if tokens > MAX_TOKENS or not 1 <= block_size <= MAX_BLOCK_SIZE:
        raise PromptKeysError(f"{tokens} tokens in blocks of {block_size}")
    if boundaries > tokens or keys > tokens // block_size:
        raise PromptKeysError(f"{boundaries} boundaries and {keys} keys for {tokens} tokens in blocks of {block_size}")


def _boundaries(data: bytes, tokens: int) -> tuple[int, ...]:
    found = tuple(_unpack(data))
    if found and not (found[0] > 0 and found[-1] <= tokens and all(a < b for a, b in pairwise(found))):
        raise PromptKeysError("boundaries are not ascending within the prompt")
    return found


def _keys(data: bytes) -> bytes:
    if _ZERO in data and 0 in unpack_keys(data):  # zeros may also be of two keys
        raise PromptKeysError("0 is not a block key")
    return data


def _pack(values: Iterable[int]) -> bytes:
    return _little_endian(array("I", values)).tobytes()


def _unpack(data: bytes) -> list[int]:
    values = array("I")
    values.frombytes(data)
    return _little_endian(values).tolist()


def _little_endian(values: array[int]) -> array[int]:
    if sys.byteorder == "big":
        values.byteswap()
    return values
