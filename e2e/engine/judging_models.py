"""Tiny models that judge texts: they classify, or score a pair. Random weights, and the tiny model's tokenizer.

One is the tiny model with a layer of scores on top, as rerankers made of chat models are; the other is an encoder that
reads a pair at once, as BERT's cross-encoders are. Of one label a model scores; of several it classifies.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from cachefleet_local.models import tiny_model
from cachefleet_local.models.tiny_model import SIZES, TINY_SOURCE, VOCABULARY, safetensors

SEED: Final = 4_181
LABELS: Final = ("question", "order", "small talk")
ENCODER_LENGTH: Final = 512
ENCODER: Final[dict[str, Any]] = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "dtype": "float32",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_act": "gelu",
    "max_position_embeddings": ENCODER_LENGTH,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}

Tensor = tuple[tuple[int, ...], "array[float]"]


def decoder(folder: Path, tiny: Path, labels: Sequence[str] = LABELS) -> Path:
    """The tiny model, which classifies by ``labels``; of one label it scores."""
    found = json.loads((tiny / "config.json").read_text()) | {"architectures": ["Qwen2ForSequenceClassification"]}
    chance, size = random.Random(SEED), SIZES[TINY_SOURCE]
    weights = {name: one for name, one in tiny_model._weights(size, chance) if name != "lm_head.weight"}
    weights["score.weight"] = _matrix(chance, len(labels), size.hidden)
    return _write(folder, tiny, found | {"pad_token_id": 0} | _labelled(labels), weights)


def encoder(folder: Path, tiny: Path, labels: Sequence[str] = ("relevance",)) -> Path:
    """A BERT that reads a pair at once; it caches nothing, as every part of a text is read with all of it."""
    weights = dict(_encoder_weights(random.Random(SEED), len(labels)))
    return _write(folder, tiny, ENCODER | _labelled(labels), weights)


def _labelled(labels: Sequence[str]) -> dict[str, Any]:
    return {
        "num_labels": len(labels),
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def _write(folder: Path, tiny: Path, configuration: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for path in tiny.glob("tokenizer*"):
        (folder / path.name).symlink_to(path)
    (folder / "config.json").write_text(json.dumps(configuration))
    (folder / "model.safetensors").write_bytes(safetensors(weights))
    return folder


def _encoder_weights(chance: random.Random, labels: int) -> Iterator[tuple[str, Tensor]]:
    hidden, wide = ENCODER["hidden_size"], ENCODER["intermediate_size"]
    rows = (("word", VOCABULARY), ("position", ENCODER_LENGTH), ("token_type", ENCODER["type_vocab_size"]))
    for name, count in rows:
        yield f"bert.embeddings.{name}_embeddings.weight", _matrix(chance, count, hidden)
    yield from _norm("bert.embeddings.LayerNorm", hidden)
    for layer in range(ENCODER["num_hidden_layers"]):
        at = f"bert.encoder.layer.{layer}"
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            yield from _linear(chance, f"{at}.{name}", hidden, hidden)
        yield from _norm(f"{at}.attention.output.LayerNorm", hidden)
        yield from _linear(chance, f"{at}.intermediate.dense", wide, hidden)
        yield from _linear(chance, f"{at}.output.dense", hidden, wide)
        yield from _norm(f"{at}.output.LayerNorm", hidden)
    yield from _linear(chance, "bert.pooler.dense", hidden, hidden)
    yield from _linear(chance, "classifier", labels, hidden)


def _linear(chance: random.Random, name: str, rows: int, columns: int) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", _matrix(chance, rows, columns)
    yield f"{name}.bias", _constant(rows, 0.0)


def _norm(name: str, size: int) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", _constant(size, 1.0)
    yield f"{name}.bias", _constant(size, 0.0)


def _matrix(chance: random.Random, rows: int, columns: int) -> Tensor:
    spread = (3 / columns) ** 0.5
    return (rows, columns), array("f", (chance.uniform(-spread, spread) for _ in range(rows * columns)))


def _constant(size: int, value: float) -> Tensor:
    return (size,), array("f", [value] * size)
