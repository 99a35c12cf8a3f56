"""vLLM 0.32's answers of a pooling model's endpoints; the vectors are made of hashes, scores are their products."""

from __future__ import annotations

import base64
import hashlib
import struct
import time
from array import array
from collections.abc import Sequence
from operator import mul
from typing import Any

from tests.fakes.answers import Json, new_id
from tests.fakes.options import EngineOptions

SIZE = 8


def embeddings(options: EngineOptions, inputs: Sequence[Sequence[int]], encoding: str) -> Json:
    """The vectors of several inputs."""
    data = [
        {"index": index, "object": "embedding", "embedding": _encoded(_vector(ids), encoding)}
        for index, ids in enumerate(inputs)
    ]
    return _listed(options, "embd", data, inputs)


def states(options: EngineOptions, inputs: Sequence[Sequence[int]]) -> Json:
    """The answer of ``/pooling``."""
    data = [{"index": index, "object": "pooling", "data": _vector(ids)} for index, ids in enumerate(inputs)]
    return _listed(options, "pooling", data, inputs)


def scores(options: EngineOptions, ones: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> Json:
    """The scores of one text with each of the others, or of pairs."""
    data = [
        {"index": index, "object": "score", "score": score}
        for index, score in enumerate(_products([*ones] * (len(others) if len(ones) == 1 else 1), others))
    ]
    return _listed(options, "score", data, [*ones, *others])


def ranks(options: EngineOptions, query: Sequence[int], documents: Sequence[Sequence[int]], body: Json) -> Json:
    """Documents in the order of their scores with a query, the first ``top_n`` where that is asked for."""
    found = _products([query] * len(documents), documents)
    order = sorted(range(len(documents)), key=lambda index: -found[index])[: body.get("top_n") or None]
    tokens = sum(map(len, [query, *documents]))
    texts = body["documents"]
    results = [
        {"index": at, "document": {"text": texts[at], "multi_modal": None}, "relevance_score": found[at]}
        for at in order
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": f"rerank-{new_id()}", "model": options.model, "usage": usage, "results": results}


def _listed(options: EngineOptions, kind: str, data: list[Json], inputs: Sequence[Sequence[int]]) -> Json:
    tokens = sum(map(len, inputs))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    return {
        "id": f"{kind}-{new_id()}",
        "object": "list",
        "created": int(time.time()),
        "model": options.model,
        "data": data,
        "usage": usage | {"prompt_tokens_details": None, "completion_tokens_details": None},
    }


def _products(ones: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> list[float]:
    return [sum(map(mul, _vector(one), _vector(other))) for one, other in zip(ones, others, strict=True)]


def _vector(ids: Sequence[int]) -> list[float]:
    return [byte / 256 for byte in hashlib.sha256(array("I", ids).tobytes()).digest()[:SIZE]]


def _encoded(vector: list[float], encoding: str) -> Any:
    return base64.b64encode(struct.pack(f"<{SIZE}f", *vector)).decode() if encoding == "base64" else vector
