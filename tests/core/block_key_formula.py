"""The formula of block keys said once more, as literally as possible and sharing no code with the product.

``python -m tests.core.block_key_formula`` writes block_key_vectors.json, which every implementation must reproduce.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any, Final

VECTORS: Final = Path(__file__).with_name("block_key_vectors.json")
GOLDEN: Final = 11400714819323198485
TWO_64: Final = 2**64

INDEX_KEY: Final = bytes(range(32))
NAMESPACES: Final = (
    {"contract": "sha256:00", "salt": "", "lora": ""},
    {"contract": "sha256:00", "salt": "tenant-a", "lora": ""},
    {"contract": "sha256:00", "salt": "", "lora": "tenant-a"},
    {"contract": "sha256:ü", "salt": "s" * 300, "lora": "adapter"},
)
PROMPTS: Final[tuple[list[int], ...]] = (
    [],
    [1],
    [0] * 32,
    [2**32 - 1] * 33,
    [(i * 2654435761) % 2**32 for i in range(67)],
)
BLOCK_SIZES: Final = (1, 3, 4, 6, 16, 32, 33)
WITH_LOOKAHEAD: Final = ((1, 1), (3, 1), (4, 3), (16, 1), (16, 5), (32, 1))
"""Block sizes, and tokens after a block that its key covers."""


def fold(a: int, b: int) -> int:
    product = a * b
    return (product // TWO_64) ^ (product % TWO_64)


def splitmix64(state: int) -> int:
    z = (state + GOLDEN) % TWO_64
    z = ((z ^ (z >> 30)) * 13787848793156543929) % TWO_64
    z = ((z ^ (z >> 27)) * 10723151780598845931) % TWO_64
    return z ^ (z >> 31)


def keys(
    index_key: bytes, namespace: dict[str, str], block_size: int, tokens: list[int], lookahead: int = 0
) -> list[int]:
    """All keys of a prompt from its first token on, a block at a time."""
    message = b"cachefleet/block-keys/1"
    for field in (namespace["contract"], namespace["salt"], namespace["lora"]):
        message += struct.pack("<I", len(field.encode("utf-8"))) + field.encode("utf-8")
    root, finish, lane, position = struct.unpack("<QQQQ", hmac.new(index_key, message, hashlib.sha256).digest())
    previous, out = root, []
    for i in range(len(tokens) // block_size):
        window = tokens[i * block_size : (i + 1) * block_size + lookahead]
        if len(window) < block_size + lookahead:
            break
        h = block_hash(lane, window)
        previous = (previous + fold(h ^ finish, (position + (i + 1) * GOLDEN) % TWO_64)) % TWO_64
        previous = 1 if previous == 0 else previous
        out.append(previous)
    return out


def block_hash(lane: int, tokens: list[int]) -> int:
    data = b"".join(struct.pack("<I", token) for token in tokens)
    data += b"\0" * (-len(data) % 16)
    total = 0
    for j in range(len(data) // 16):
        x, y = struct.unpack("<QQ", data[16 * j : 16 * j + 16])
        even = splitmix64((lane + 2 * j * GOLDEN) % TWO_64)
        odd = splitmix64((lane + (2 * j + 1) * GOLDEN) % TWO_64)
        total += fold(x ^ even, y ^ odd)
    return total % TWO_64


def digest(held: list[tuple[int, int]]) -> int:
    """The digest of a set of (key, tier)."""
    salts = {0: 0, 1: 0xA5A55A5AC3C33C3C}
    return sum(splitmix64(key ^ salts[tier]) for key, tier in held) % TWO_64


def vectors() -> dict[str, Any]:
    chains = [
        {
            "namespace": number,
            "block_size": size,
            "prompt": place,
            "keys": [f"{key:016x}" for key in keys(INDEX_KEY, namespace, size, prompt)],
        }
        for number, namespace in enumerate(NAMESPACES)
        for size in BLOCK_SIZES
        for place, prompt in enumerate(PROMPTS)
    ]
    chains += [
        {
            "namespace": 1,
            "block_size": size,
            "lookahead": lookahead,
            "prompt": place,
            "keys": [f"{key:016x}" for key in keys(INDEX_KEY, NAMESPACES[1], size, prompt, lookahead)],
        }
        for size, lookahead in WITH_LOOKAHEAD
        for place, prompt in enumerate(PROMPTS)
    ]
    sets = [[], [(1, 0)], [(1, 1)], [(1, 0), (1, 1)], [(TWO_64 - 1, 0), (GOLDEN, 1), (2, 0)]]
    digests = [
        {"held": [[f"{key:016x}", tier] for key, tier in held], "digest": f"{digest(held):016x}"} for held in sets
    ]
    shared = {"namespaces": NAMESPACES, "prompts": PROMPTS}
    return {"index_key": INDEX_KEY.hex(), **shared, "chains": chains, "digests": digests}


def render() -> str:
    """The vectors as the text of their file, one entry a line."""
    made = vectors()
    parts = [f'"index_key": "{made["index_key"]}"']
    for name in ("namespaces", "prompts", "chains", "digests"):
        lines = ",\n".join(json.dumps(entry, ensure_ascii=True) for entry in made[name])
        parts.append(f'"{name}": [\n{lines}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    VECTORS.write_text(render(), encoding="utf-8")
