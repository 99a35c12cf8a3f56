"""Models for machines with no model hub: random weights, a real tokenizer, a real chat template.

They answer nonsense, quickly. Everything about them is true to a large model except their size: vLLM loads them as any
Qwen2, renders ChatML and caches their prefixes. All of it follows from a fixed seed and our own words, so every worker
on every machine has identical weights and token ids. A pool file names one as its ``model.source``:

- ``cachefleet/tiny`` costs next to nothing. 512 bytes of KV cache a token (2 layers, 1 KV head, 32 wide, float32).
- ``cachefleet/small`` makes a CPU work for each token of a prompt, as a large model does a GPU, so that one can see
  what a cache saves. 2048 bytes of KV cache a token (8 layers).
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

from cachefleet_local.models.tiny_tokenizer import BYTES, CHAT_TEMPLATE, SPECIAL_TOKENS, TURN_END, tokenizer_files
from cachefleet_local.models.words import WORDS

TINY_SOURCE: Final = "cachefleet/tiny"
SMALL_SOURCE: Final = "cachefleet/small"

RECIPE: Final = 1
"""Version of the files made here; raise it with every change of them, so that caches do not keep old models."""

VOCABULARY: Final = 2048
HEAD: Final = 32
MAX_LENGTH: Final = 32768
MAX_NEW_TOKENS: Final = 1024
"""Bound on one answer: the models would not stop by themselves."""

SEED: Final = 20_231


@dataclass(frozen=True, slots=True)
class Size:
    """Dimensions in which the models differ."""

    hidden: int
    feed_forward: int
    layers: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache per token on one device, in float32: key and value of the one KV head, in each layer."""
        return self.layers * 2 * HEAD * 4


SIZES: Final = {
    TINY_SOURCE: Size(hidden=64, feed_forward=128, layers=2),
    SMALL_SOURCE: Size(hidden=256, feed_forward=1024, layers=8),
}


def tiny_model_path(environment: Mapping[str, str] = os.environ) -> Path:
    """The tiny model's folder in the user's cache; the first call makes it, in a second or two, or raises OSError."""
    return made_model_path(TINY_SOURCE, environment)


def made_model_path(source: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of the model that ``source`` names, made at the first call. KeyError for a source that is not ours."""
    size = SIZES[source]
    path = model_cache(environment) / model_digest(size)
    if not path.is_dir():
        make_model(path, size)
    return path


def model_cache(environment: Mapping[str, str]) -> Path:
    """Where made models are kept: below XDG_CACHE_HOME where that is set, else below ~/.cache."""
    root = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "cachefleet" / "models"


def model_digest(size: Size) -> str:
    """Digest by which a model is named: equal digests mean equal files."""
    recipe = [RECIPE, VOCABULARY, HEAD, *astuple(size), MAX_LENGTH, MAX_NEW_TOKENS, SEED]
    content = json.dumps([recipe, CHAT_TEMPLATE, SPECIAL_TOKENS, WORDS])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def make_model(path: Path, size: Size) -> None:
    """Write the model to ``path`` all at once: other processes see nothing or the whole. Keeps one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        for name, content in model_files(size):
            (draft / name).write_bytes(content)
        draft.chmod(0o755)
        draft.rename(path)
    except OSError:
        if not path.is_dir():  # else another process was first, with the same files
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def model_files(size: Size) -> Iterator[tuple[str, bytes]]:
    """Every file of the model: name and content."""
    for name, text in tokenizer_files(WORDS, VOCABULARY, MAX_LENGTH).items():
        yield name, text.encode()
    yield "config.json", _json(_configuration(size))
    yield "generation_config.json", _json({"eos_token_id": _special_id(TURN_END), "max_new_tokens": MAX_NEW_TOKENS})
    yield "model.safetensors", safetensors(dict(_weights(size, random.Random(SEED))))  # noqa: S311 - wants a seed


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


def _weights(size: Size, chance: random.Random) -> Iterator[tuple[str, tuple[tuple[int, ...], array[float]]]]:
    def matrix(rows: int, columns: int, spread: float) -> tuple[tuple[int, ...], array[float]]:
        return (rows, columns), array("f", (chance.uniform(-spread, spread) for _ in range(rows * columns)))

    def constant(size: int, value: float) -> tuple[tuple[int, ...], array[float]]:
        return (size,), array("f", [value] * size)

    hidden = size.hidden
    yield "model.embed_tokens.weight", matrix(VOCABULARY, hidden, 1.0)
    for layer in range(size.layers):
        for name, rows, columns in _matrices(size):
            yield f"model.layers.{layer}.{name}.weight", matrix(rows, columns, (3 / columns) ** 0.5)
        for name, rows in (("q_proj", hidden), ("k_proj", HEAD), ("v_proj", HEAD)):
            yield f"model.layers.{layer}.self_attn.{name}.bias", constant(rows, 0.0)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{name}.weight", constant(hidden, 1.0)
    yield "model.norm.weight", constant(hidden, 1.0)
    yield "lm_head.weight", _speaking_whole_words(matrix(VOCABULARY, hidden, 1.0))


def _matrices(size: Size) -> list[tuple[str, int, int]]:
    hidden, wide = size.hidden, size.feed_forward
    return [
        ("self_attn.q_proj", hidden, hidden),
        ("self_attn.k_proj", HEAD, hidden),
        ("self_attn.v_proj", HEAD, hidden),
        ("self_attn.o_proj", hidden, hidden),
        ("mlp.gate_proj", wide, hidden),
        ("mlp.up_proj", wide, hidden),
        ("mlp.down_proj", hidden, wide),
    ]


def _speaking_whole_words(head: tuple[tuple[int, ...], array[float]]) -> tuple[tuple[int, ...], array[float]]:
    """The output layer without single bytes and special tokens, so that answers are valid text of full length."""
    shape, values = head
    width = shape[1]
    for token in (*range(BYTES), *map(_special_id, SPECIAL_TOKENS)):
        values[token * width : (token + 1) * width] = array("f", bytes(4 * width))
    return shape, values


def _special_id(token: str) -> int:
    return VOCABULARY - len(SPECIAL_TOKENS) + SPECIAL_TOKENS.index(token)


def _configuration(size: Size) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "dtype": "float32",
        "vocab_size": VOCABULARY,
        "hidden_size": size.hidden,
        "intermediate_size": size.feed_forward,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.hidden // HEAD,
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


def main(arguments: Sequence[str]) -> int:
    """``SOURCE FOLDER``: write a model to a folder, for instance a pod's volume; returns the exit status."""
    if len(arguments) != 2 or arguments[0] not in SIZES:
        sys.stderr.write(f"usage: python -m cachefleet_local.models.tiny_model {{{','.join(SIZES)}}} FOLDER\n")
        return 2
    make_model(Path(arguments[1]), SIZES[arguments[0]])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
