"""Block keys: names of token blocks that do not depend on the engine.

A key is 64 bits and commits to every token before it, in one namespace. Engines keep their own hashes; the
agent beside each engine translates, so workers may differ in hash algorithm, seed or vLLM version.

The formula (all arithmetic modulo 2**64; ``GOLDEN = 0x9E3779B97F4A7C15``; ``fold(a, b)`` is the upper xor the
lower half of the 128-bit product ``a * b``):

1. *Namespace.* ``HMAC-SHA256(index key, message)`` where ``message`` is ``b"cachefleet/block-keys/1"`` followed by
   contract fingerprint, salt and adapter, each as UTF-8 behind its length as a little-endian u32. Its four
   little-endian u64 words are ``root``, ``finish``, ``lane``, ``position``.
2. *Lane keys.* ``k[m] = splitmix64(lane + m * GOLDEN)`` for ``m`` in ``0 .. 2 * ceil(B / 4) - 1``.
3. *Block hash.* The ``B`` tokens as little-endian u32, zero-padded to 16 bytes, give lanes ``(x[j], y[j])`` of
   little-endian u64: ``h = sum over j of fold(x[j] ^ k[2j], y[j] ^ k[2j + 1])``.
4. *Chain.* ``key[-1] = root`` and ``key[i] = key[i - 1] + fold(h[i] ^ finish, position + (i + 1) * GOLDEN)``; a key
   that would be 0 is 1, because 0 means "no parent" on the wire.

The chain is a position-salted sum, so it costs one addition of latency a block, and a chain may be continued from
any of its keys. ``tests/core/block_key_vectors.json`` holds vectors that every implementation must reproduce. Images
and the like in a block: block_identity/media.py.

*Lookahead.* From 0.33 on vLLM may hash a block together with the ``L`` tokens after it, which a draft model (EAGLE,
MTP) has read (``VllmConfig.num_hash_lookahead_tokens``). Keys then cover these tokens as well: in steps 2 and 3 the
window of ``B + L`` tokens from a block's first on stands for its ``B`` tokens, and a block whose window is not whole
has no key. So a prompt of ``n`` tokens has ``(n - L) // B`` keys; with ``L = 0`` they are those of step 1 to 4 alone.
``L`` is part of the contract, whose key version is then LOOKAHEAD_KEY_VERSION.
"""

from __future__ import annotations

import hmac
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NewType, cast

from cachefleet_core.request_bodies import token_ids

BlockKey = NewType("BlockKey", int)

NO_PARENT: Final = BlockKey(0)
"""Stands for the root where a parent is expected; never the key of a block."""

KEY_VERSION: Final = 1
LOOKAHEAD_KEY_VERSION: Final = 2
"""Of keys that cover tokens after their block."""
GOLDEN: Final = 0x9E3779B97F4A7C15
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
MAX_BLOCK_SIZE: Final = 1 << 20
MAX_LOOKAHEAD: Final = 1024
_DOMAIN: Final = b"cachefleet/block-keys/1"
_TOKENS_PER_LANE: Final = 4


class Tier(IntEnum):
    """Where a block's bytes are: on the device that computes with them, or in the memory of its host."""

    DEVICE = 0
    HOST = 1


@dataclass(frozen=True, slots=True)
class Namespace:
    """What two prompts must share, besides their tokens, to share blocks.

    ``contract`` is an index contract's fingerprint, ``salt`` the tenant's cache salt ("" without one) and ``lora``
    the adapter with its revision (block_identity/adapters.py; "" for the base model).
    """

    contract: str
    salt: str = ""
    lora: str = ""


def fold(a: int, b: int) -> int:
    """Both halves of the 128-bit product of two 64-bit numbers, xored into one."""
    product = a * b
    return (product >> 64) ^ (product & MASK)


def splitmix64(state: int) -> int:
    """The output function of Steele, Lea and Flood's SplitMix64 at ``state`` (64 bits in, 64 bits out)."""
    z = (state + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class BlockKeyer:
    """Computes the keys of token sequences in one namespace at one block size.

    ``lookahead`` are the tokens after each block that its key covers. Raises ValueError for a block size outside
    1 .. MAX_BLOCK_SIZE or a lookahead outside 0 .. MAX_LOOKAHEAD; ``keys`` and ``packed_keys`` raise it for token ids
    outside 0 .. 2**32 - 1.
    """

    def __init__(self, index_key: bytes, namespace: Namespace, block_size: int, lookahead: int = 0) -> None:
        if not 1 <= block_size <= MAX_BLOCK_SIZE:
            raise ValueError(f"block size must be from 1 to {MAX_BLOCK_SIZE}, got {block_size}")
        if not 0 <= lookahead <= MAX_LOOKAHEAD:
            raise ValueError(f"lookahead must be from 0 to {MAX_LOOKAHEAD}, got {lookahead}")
        self.block_size = block_size
        self.lookahead = lookahead
        self._prepare(namespace_secrets(index_key, namespace))

    def _prepare(self, secrets: tuple[int, int, int, int]) -> None:
        self._root, self._finish, lane, self._position = secrets
        window = self.block_size + self.lookahead
        lanes = -(-window // _TOKENS_PER_LANE)
        self._lane_keys = [splitmix64((lane + m * GOLDEN) & MASK) for m in range(2 * lanes)]
        self._padding = bytes(16 * lanes - 4 * window)

    def blocks(self, tokens: int) -> int:
        """Number of blocks with a key in a sequence of ``tokens`` tokens."""
        return keyed_blocks(tokens, self.block_size, self.lookahead)

    def keys(self, tokens: Sequence[int], parent: BlockKey = NO_PARENT, position: int = 0) -> list[BlockKey]:
        """The keys of the full blocks of ``tokens`` whose lookahead is complete; a partial last block has none.

        To continue a chain pass the key of the block before and the position, in blocks, at which ``tokens`` start.
        """
        full = self.blocks(len(tokens))
        key: int = parent or self._root
        out: list[BlockKey] = []
        for i, block_hash in enumerate(self._block_hashes(tokens, full), start=position + 1):
            key = (key + fold(block_hash ^ self._finish, (self._position + i * GOLDEN) & MASK)) & MASK or 1
            out.append(BlockKey(key))
        return out

    def packed_keys(self, tokens: Sequence[int], parent: BlockKey = NO_PARENT, position: int = 0) -> bytes:
        """The same as ``keys``, packed as by ``pack_keys``."""
        return pack_keys(self.keys(tokens, parent, position))

    def packed_json(self, body: bytes, field: str) -> tuple[int, bytes]:
        """The number of token ids in the array ``field`` of a JSON object, and their packed keys.

        BodyError where there is no such array. The text around it need not be checked: some invalid JSON may pass.
        """
        tokens = token_ids(body, field)
        return len(tokens), self.packed_keys(tokens)

    def _block_hashes(self, tokens: Sequence[int], full: int) -> Iterable[int]:
        data = pack_tokens(tokens[: full * self.block_size + self.lookahead])
        lane_keys, size, window = self._lane_keys, 4 * self.block_size, 4 * (self.block_size + self.lookahead)
        for start in range(0, full * size, size):
            words = _words(data[start : start + window] + self._padding)
            total = 0
            for m in range(0, len(words), 2):
                total += fold(words[m] ^ lane_keys[m], words[m + 1] ^ lane_keys[m + 1])
            yield total & MASK


def keyed_blocks(tokens: int, block_size: int, lookahead: int = 0) -> int:
    """Number of blocks with a key in a prompt's leading tokens."""
    return max(0, tokens - lookahead) // block_size if block_size else 0


def namespace_secrets(index_key: bytes, namespace: Namespace) -> tuple[int, int, int, int]:
    """The words ``root``, ``finish``, ``lane`` and ``position`` of step 1 of the formula."""
    root, finish, lane, position = _words(hmac.digest(index_key, _message(namespace), "sha256"))
    return root, finish, lane, position


def pack_keys(keys: Iterable[int]) -> bytes:
    """Keys as little-endian u64, their form in frames. OverflowError for a key outside 64 bits."""
    return _little_endian(array("Q", keys)).tobytes()


def unpack_keys(data: bytes) -> list[BlockKey]:
    """The inverse of ``pack_keys``. ValueError where the length is no multiple of 8."""
    if len(data) % 8:
        raise ValueError(f"packed keys must be a multiple of 8 bytes, got {len(data)}")
    return cast("list[BlockKey]", _words(data))


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian u32. ValueError for values that are not token ids."""
    if isinstance(tokens, (bytes, bytearray)):
        tokens = list(tokens)  # an array would take them for packed numbers
    try:
        return _little_endian(array("I", tokens)).tobytes()
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids must be integers from 0 to 4294967295: {error}") from error


def _message(namespace: Namespace) -> bytes:
    fields = (part.encode() for part in (namespace.contract, namespace.salt, namespace.lora))
    return _DOMAIN + b"".join(len(field).to_bytes(4, "little") + field for field in fields)


def _words(data: bytes) -> list[int]:
    words = array("Q")
    words.frombytes(data)
    return _little_endian(words).tolist()


def _little_endian(values: array[int]) -> array[int]:
    if sys.byteorder == "big":
        values.byteswap()
    return values
