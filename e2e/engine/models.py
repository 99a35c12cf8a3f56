"""A second family of tiny models, with other chat markers than the product's own: what holds for one must for both.

Llama's weights and configuration, Llama 3's markers, its way to split text, and a token that starts every prompt. Made
from a fixed seed and our own words, like cachefleet_local.models.tiny_model, and kept in the same cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

from cachefleet_local.models import tiny_model, tiny_tokenizer
from cachefleet_local.models.tiny_model import (
    HEAD,
    MAX_LENGTH,
    MAX_NEW_TOKENS,
    VOCABULARY,
    Size,
    model_cache,
    safetensors,
)
from cachefleet_local.models.words import WORDS

RECIPE: Final = 1
"""Raise it with every change of what is made."""

SEED: Final = 8_128
SIZE: Final = Size(hidden=96, feed_forward=160, layers=3)

BEGIN: Final = "<|begin_of_text|>"
HEADER: Final = "<|start_header_id|>"
HEADER_END: Final = "<|end_header_id|>"
TURN_END: Final = "<|eot_id|>"
SPECIAL_TOKENS: Final = (BEGIN, HEADER, HEADER_END, TURN_END)

CHAT_TEMPLATE: Final = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim }}"
    "{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Tensor = tuple[tuple[int, ...], "array[float]"]


def llama_path(environment: Mapping[str, str] = os.environ) -> Path:
    """The model's folder, made at the first call."""
    recipe = [RECIPE, tiny_model.RECIPE, SEED, *astuple(SIZE), VOCABULARY, CHAT_TEMPLATE, SPLIT, WORDS]
    path = model_cache(environment) / f"llama-{hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:16]}"
    if not path.is_dir():
        _make(path)
    return path


def _make(path: Path) -> None:
    """All at once: others see nothing or the whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        for name, content in _files():
            (draft / name).write_bytes(content)
        draft.chmod(0o755)
        draft.rename(path)
    except OSError:
        if not path.is_dir():  # else another process was first, with the same files
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _files() -> Iterator[tuple[str, bytes]]:
    yield "tokenizer.json", _json(_tokenizer())
    yield "tokenizer_config.json", _json(_tokenizer_configuration())
    yield "config.json", _json(_configuration())
    yield "generation_config.json", _json({"eos_token_id": _special_id(TURN_END), "max_new_tokens": MAX_NEW_TOKENS})
    yield "model.safetensors", safetensors(dict(_weights(random.Random(SEED))))


def _weights(chance: random.Random) -> Iterator[tuple[str, Tensor]]:
    """Qwen2's, less the biases, which Llama has none of; the output layer speaks whole words only."""
    for name, tensor in tiny_model._weights(SIZE, chance):
        if name.endswith(".bias"):
            continue
        yield name, _without_special(tensor) if name == "lm_head.weight" else tensor


def _without_special(head: Tensor) -> Tensor:
    shape, values = head
    for token in map(_special_id, SPECIAL_TOKENS):
        values[token * shape[1] : (token + 1) * shape[1]] = array("f", bytes(4 * shape[1]))
    return head


def _special_id(token: str) -> int:
    return VOCABULARY - len(SPECIAL_TOKENS) + SPECIAL_TOKENS.index(token)


def _tokenizer() -> dict[str, Any]:
    spare = len(SPECIAL_TOKENS) - len(tiny_tokenizer.SPECIAL_TOKENS)
    files = tiny_tokenizer.tokenizer_files(WORDS, VOCABULARY - spare, MAX_LENGTH)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return dict(json.loads(files["tokenizer.json"])) | {
        "added_tokens": [{"id": _special_id(token), "content": token, **flags} for token in SPECIAL_TOKENS],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_only]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": BEGIN, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {BEGIN: {"id": BEGIN, "ids": [_special_id(BEGIN)], "tokens": [BEGIN]}},
        },
    }


def _tokenizer_configuration() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
        "bos_token": BEGIN,
        "eos_token": TURN_END,
        "pad_token": TURN_END,
        "additional_special_tokens": [HEADER, HEADER_END],
        "chat_template": CHAT_TEMPLATE,
    }


def _configuration() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": VOCABULARY,
        "hidden_size": SIZE.hidden,
        "intermediate_size": SIZE.feed_forward,
        "num_hidden_layers": SIZE.layers,
        "num_attention_heads": SIZE.hidden // HEAD,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": _special_id(BEGIN),
        "eos_token_id": _special_id(TURN_END),
        "use_cache": True,
    }


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode()
