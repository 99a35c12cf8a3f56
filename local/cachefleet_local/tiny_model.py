"""A model for machines with no model hub: random weights, a real tokenizer, a real chat template.

It answers nonsense, quickly. Everything about it is true to a large model except its size: vLLM loads it as any
Qwen2, renders ChatML and caches its prefixes. All of it follows from a fixed seed and our own words, so every worker
on every machine has identical weights and token ids. In a pool file, ``model.source: cachefleet/tiny`` means it.

512 bytes of KV cache a token (2 layers, 1 KV head, 32 wide, float32), so 1 MiB holds 2048 tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cachefleet_local.tiny_tokenizer import BYTES, CHAT_TEMPLATE, SPECIAL_TOKENS, TURN_END, tokenizer_files
from cachefleet_local.words import WORDS

TINY_SOURCE: Final = "cachefleet/tiny"
"""The value of ``model.source`` that means this model."""

KV_BYTES_PER_TOKEN: Final = 512
"""On one device, in float32."""

RECIPE: Final = 1
"""Raise it with every change of what is made, so that caches do not keep the old model."""

VOCABULARY: Final = 2048
HIDDEN: Final = 64
HEAD: Final = 32
FEED_FORWARD: Final = 128
LAYERS: Final = 2
MAX_LENGTH: Final = 32768
MAX_NEW_TOKENS: Final = 1024
"""Bound on one answer: the model has nothing to say and would not stop by itself."""

SEED: Final = 20_231


def tiny_model_path(environment: Mapping[str, str] = os.environ) -> Path:
    """The tiny model's folder in the user's cache; the first call makes it, in a second or two, or raises OSError."""
    path = model_cache(environment) / tiny_model_digest()
    if not path.is_dir():
        make_tiny_model(path)
    return path


def model_cache(environment: Mapping[str, str]) -> Path:
    """Where made models are kept: below XDG_CACHE_HOME where that is set, else below ~/.cache."""
    root = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "cachefleet" / "models"


def tiny_model_digest() -> str:
    """Names what is made: equal digests mean equal files."""
    recipe = [RECIPE, VOCABULARY, HIDDEN, HEAD, FEED_FORWARD, LAYERS, MAX_LENGTH, MAX_NEW_TOKENS, SEED]
    content = json.dumps([recipe, CHAT_TEMPLATE, SPECIAL_TOKENS, WORDS])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def make_tiny_model(path: Path) -> None:
    """Write the model to ``path`` all at once: other processes see nothing or the whole. Keeps one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        for name, content in model_files():
            (draft / name).write_bytes(content)
        draft.chmod(0o755)
        draft.rename(path)
    except OSError:
        if not path.is_dir():  # else another process was first, with the same files
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def model_files() -> Iterator[tuple[str, bytes]]:
    """Every file of the model with its name."""
    for name, text in tokenizer_files(WORDS, VOCABULARY, MAX_LENGTH).items():
        yield name, text.encode()
    yield "config.json", _json(_configuration())
    yield "generation_config.json", _json({"eos_token_id": _special_id(TURN_END), "max_new_tokens": MAX_NEW_TOKENS})
    yield "model.safetensors", safetensors(dict(_weights(random.Random(SEED))))  # noqa: S311 - wants a seed


def safetensors(tensors: Mapping[str, tuple[tuple[int, ...], array[float]]]) -> bytes:
    """Float32 tensors in the safetensors format: length of the header, header as JSON, then the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, values) in tensors.items():
        end = offset + 4 * len(values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(_bytes(values) for _, values in tensors.values())


def _weights(chance: random.Random) -> Iterator[tuple[str, tuple[tuple[int, ...], array[float]]]]:
    def matrix(rows: int, columns: int, spread: float) -> tuple[tuple[int, ...], array[float]]:
        return (rows, columns), array("f", (chance.uniform(-spread, spread) for _ in range(rows * columns)))

    def constant(size: int, value: float) -> tuple[tuple[int, ...], array[float]]:
        return (size,), array("f", [value] * size)

    yield "model.embed_tokens.weight", matrix(VOCABULARY, HIDDEN, 1.0)
    for layer in range(LAYERS):
        for name, rows, columns in _MATRICES:
            yield f"model.layers.{layer}.{name}.weight", matrix(rows, columns, (3 / columns) ** 0.5)
        for name, size in _BIASES:
            yield f"model.layers.{layer}.{name}.bias", constant(size, 0.0)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{name}.weight", constant(HIDDEN, 1.0)
    yield "model.norm.weight", constant(HIDDEN, 1.0)
    yield "lm_head.weight", _speaking_whole_words(matrix(VOCABULARY, HIDDEN, 1.0))


_MATRICES: Final = (
    ("self_attn.q_proj", HIDDEN, HIDDEN),
    ("self_attn.k_proj", HEAD, HIDDEN),
    ("self_attn.v_proj", HEAD, HIDDEN),
    ("self_attn.o_proj", HIDDEN, HIDDEN),
    ("mlp.gate_proj", FEED_FORWARD, HIDDEN),
    ("mlp.up_proj", FEED_FORWARD, HIDDEN),
    ("mlp.down_proj", HIDDEN, FEED_FORWARD),
)
_BIASES: Final = (("self_attn.q_proj", HIDDEN), ("self_attn.k_proj", HEAD), ("self_attn.v_proj", HEAD))


def _speaking_whole_words(head: tuple[tuple[int, ...], array[float]]) -> tuple[tuple[int, ...], array[float]]:
    """The output layer without single bytes and special tokens, so that answers are valid text of full length."""
    shape, values = head
    for token in (*range(BYTES), *map(_special_id, SPECIAL_TOKENS)):
        values[token * HIDDEN : (token + 1) * HIDDEN] = array("f", [0.0] * HIDDEN)
    return shape, values


def _special_id(token: str) -> int:
    return VOCABULARY - len(SPECIAL_TOKENS) + SPECIAL_TOKENS.index(token)


def _configuration() -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "dtype": "float32",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HIDDEN // HEAD,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "use_cache": True,
        "eos_token_id": _special_id(TURN_END),
    }


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode()


def _bytes(values: array[float]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
