"""Models with room for long conversations: one layer of random weights under tokenizers of 60,000 entries.

What a turn costs besides the model itself is what is measured, so the model is as small as vLLM takes it.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from cachefleet_local.models.tiny_model import HEAD, safetensors
from e2e.engine.templates import HEADERS, INSTRUCTIONS, THINKING, TURNS, Template
from tests.worker.plugin.tokens.styles import BIG, trained

MAX_LENGTH: Final = 98_304
FEED_FORWARD: Final = 64
SEED: Final = 18


@dataclass(frozen=True, slots=True)
class Family:
    """A tokenizer's style (tests/worker/plugin/tokens/styles.py), a chat template, and a token that ends answers."""

    name: str
    style: str
    template: Template
    end: str


FAMILIES: Final = (
    Family("ChatML with thinking", "qwen", THINKING, "<|im_end|>"),
    Family("Llama 3", "llama3", HEADERS, "<|eot_id|>"),
    Family("Gemma", "gemma", TURNS, "<end_of_turn>"),
    Family("Mistral", "mistral", INSTRUCTIONS, "</s>"),
)


def write_model(folder: Path, family: Family) -> None:
    """All files of a model in ``folder``, which is there."""
    tokenizer = trained(family.style, BIG)
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": family.template.text,
        "model_max_length": MAX_LENGTH,
        "eos_token": family.end,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    words = tokenizer.get_vocab_size() + 64 - tokenizer.get_vocab_size() % 64
    end = int(tokenizer.token_to_id(family.end) or 0)
    (folder / "config.json").write_text(json.dumps(_configuration(words, end)))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    (folder / "model.safetensors").write_bytes(safetensors(_weights(words, tokenizer.get_vocab_size())))


def _configuration(words: int, end: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",  # of qwen2 transformers would read the tokenizer as Qwen's, whatever its file says
        "dtype": "float32",
        "vocab_size": words,
        "hidden_size": HEAD,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "use_cache": True,
        "eos_token_id": end,
    }


def _weights(words: int, known: int) -> dict[str, tuple[tuple[int, ...], array[float]]]:
    """By name; the rows of words that the tokenizer does not know are zero, so that no answer has one."""
    chance = np.random.default_rng(SEED)

    def matrix(rows: int, columns: int, spread: float) -> tuple[tuple[int, ...], array[float]]:
        return (rows, columns), array("f", chance.uniform(-spread, spread, rows * columns).astype("f4").tobytes())

    def constant(value: float) -> tuple[tuple[int, ...], array[float]]:
        return (HEAD,), array("f", [value] * HEAD)

    layer, spread = "model.layers.0", (3 / HEAD) ** 0.5
    head = matrix(words, HEAD, 1.0)
    head[1][known * HEAD :] = array("f", bytes(4 * (words - known) * HEAD))
    squares = {f"{layer}.self_attn.{name}_proj.weight": matrix(HEAD, HEAD, spread) for name in "qkvo"}
    return squares | {
        "model.embed_tokens.weight": matrix(words, HEAD, 1.0),
        f"{layer}.mlp.gate_proj.weight": matrix(FEED_FORWARD, HEAD, spread),
        f"{layer}.mlp.up_proj.weight": matrix(FEED_FORWARD, HEAD, spread),
        f"{layer}.mlp.down_proj.weight": matrix(HEAD, FEED_FORWARD, (3 / FEED_FORWARD) ** 0.5),
        f"{layer}.input_layernorm.weight": constant(1.0),
        f"{layer}.post_attention_layernorm.weight": constant(1.0),
        "model.norm.weight": constant(1.0),
        "lm_head.weight": head,
    }
