"""Digest of a set of held blocks, by which both ends of a report stream compare what they have.

``sum over the set of splitmix64(key xor salt of the tier)``, modulo 2**64; the salt of the device is 0, that of the
host 0xA5A5_5A5A_C3C3_3C3C. Native code keeps it in constant time per change (``native/src/digest.rs``).
"""

from __future__ import annotations


def engine_number(block_hash: int | bytes) -> int:
    """An engine's block hash as 64 bits, for checksums of engine hashes: the last 8 bytes of a longer hash."""
    return block_hash if isinstance(block_hash, int) else int.from_bytes(block_hash[-8:], "big")
