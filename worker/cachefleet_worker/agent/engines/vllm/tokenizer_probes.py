"""Texts whose token ids identify a tokenizer and a chat template (docs/adr/0002)."""

from __future__ import annotations

import hashlib
import struct
from typing import Final

PROBE_TEXT: Final = (
    "The quick brown fox jumps over 13 lazy dogs.\n\tIndented, twice:  two spaces; e-mail a.b@example.org, 3.14159!\n"
    "Größe, naïve café, Ærøskøbing - Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم नमस्ते दुनिया "  # noqa: RUF001 (other scripts are the point)
    "你好，世界。こんにちは世界 안녕하세요 สวัสดี 🙂🚀👩‍👩‍👧 <|im_start|>user<|im_end|> </s> [INST] <0x0A>\r\n"  # noqa: RUF001 (as above)
    "def f(x):\n    return {'k': [x ** 2 for _ in range(10)]}  # ok?\n"
)
_USER_TURNS: Final = (
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "It is 4."},
    {"role": "user", "content": "And \N{SQUARE ROOT}16 \N{EM DASH} the same?\n"},
)
PROBE_CONVERSATIONS: Final = (
    ({"role": "system", "content": "You are a probe. Answer briefly."}, *_USER_TURNS),
    _USER_TURNS,  # for templates without a system role
)


def digest(tokens: list[int]) -> str:
    """SHA-256 of token ids, as ``sha256:`` and hex."""
    return f"sha256:{hashlib.sha256(struct.pack(f'<{len(tokens)}I', *tokens)).hexdigest()}"
