"""vLLM 0.32's answers of ``/v1/embeddings``; the vectors are made of hashes."""

from __future__ import annotations

import base64
import hashlib
import struct
import time
from array import array
from collections.abc import Sequence
from typing import Any

from tests.fakes.answers import Json, new_id
from tests.fakes.options import EngineOptions

SIZE = 8


def embeddings(options: EngineOptions, inputs: Sequence[Sequence[int]], encoding: str) -> Json:
    """The vectors of several inputs."""
    tokens = sum(map(len, inputs))
    data = [
        {"index": index, "object": "embedding", "embedding": _encoded(_vector(ids), encoding)}
        for index, ids in enumerate(inputs)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    return {
        "id": f"embd-{new_id()}",
        "object": "list",
        "created": int(time.time()),
        "model": options.model,
        "data": data,
        "usage": usage | {"prompt_tokens_details": None, "completion_tokens_details": None},
    }


def _vector(ids: Sequence[int]) -> list[float]:
    return [byte / 256 for byte in hashlib.sha256(array("I", ids).tobytes()).digest()[:SIZE]]


def _encoded(vector: list[float], encoding: str) -> Any:
    return base64.b64encode(struct.pack(f"<{SIZE}f", *vector)).decode() if encoding == "base64" else vector
