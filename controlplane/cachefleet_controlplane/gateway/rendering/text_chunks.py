"""Keys of a prompt's text, for the times when nobody can tell its token ids.

What a model sees of a body is taken as bytes, in an order in which a later turn of a conversation begins like the one
before, and cut into chunks. A chunk's key commits to all chunks before it, to tenant and model; a last one that is not
full has none. That two prompts share chunks says that they begin alike, and so, nearly always, that their tokens do.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from typing import Final

from cachefleet_controlplane.wire.json_members import Fields
from cachefleet_core.blocks import BlockKeyer, Namespace

MakeKeyer = Callable[[bytes, Namespace, int], BlockKeyer]
"""As BlockKeyer itself: of a key, a namespace and a block's tokens."""

CHUNK_BYTES: Final = 512
KEY_BYTES: Final = 8
_ORDER: Final = ("instructions", "system", "tools", "messages", "input", "prompt")
"""Members that make a prompt, those first that stay the same from turn to turn."""
_ENDS: Final = b"]"
"""What closes a list that the next turn makes longer."""


def visible(fields: Fields) -> bytes:
    """What a model sees of a body, such that what grows is at its end."""
    parts = [bytes(fields[name]) for name in _ORDER if name in fields and bytes(fields[name]) != b"null"]
    return b"\n".join(parts).removesuffix(_ENDS)


def chunk_keys(text: bytes, *, secret: bytes, model: str, salt: str, keyer: MakeKeyer | None = None) -> bytes:
    """Eight bytes for each full chunk, as the index takes keys. ``secret`` has at most 64 bytes.

    ``keyer`` computes them as it does block keys, of four bytes of text in place of each token: worth it in native
    code, where it takes a tenth of the time.
    """
    if keyer is not None:
        words = array("I", text[: len(text) // CHUNK_BYTES * CHUNK_BYTES])
        return keyer(secret, Namespace(model, salt), CHUNK_BYTES // words.itemsize).packed_keys(words)
    hashed = hashlib.blake2b(digest_size=KEY_BYTES, key=secret)
    for name in (model, salt):
        hashed.update(len(name).to_bytes(4, "little") + name.encode())
    out = bytearray()
    for start in range(0, len(text) - CHUNK_BYTES + 1, CHUNK_BYTES):
        hashed.update(text[start : start + CHUNK_BYTES])
        out += hashed.digest()
    return bytes(out)
