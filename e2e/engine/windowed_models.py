"""Tiny models of which a hit needs more than full attention's blocks: configurations alone, with made-up weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

_SHAPE: Final[dict[str, Any]] = {
    "dtype": "float32",
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

MODELS: Final[dict[str, dict[str, Any]]] = {
    "gemma": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "sliding_window": 96,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "query_pre_attn_scalar": 32,
    },
    "olmo": {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "num_hidden_layers": 4,
        "sliding_window": 160,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "num_hidden_layers": 2,
        "sliding_window": 128,
    },
    "lfm": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "num_hidden_layers": 4,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        "conv_L_cache": 3,
        "block_dim": 64,
        "conv_dim": 64,
        "conv_dim_out": 64,
        "norm_eps": 1e-5,
    },
}


def made(name: str, tokenizer: Path, folder: Path) -> Path:
    """A model's folder, with the tokenizer of another model."""
    for path in tokenizer.iterdir():
        if path.name.startswith("tokenizer"):
            (folder / path.name).symlink_to(path)
    (folder / "config.json").write_text(json.dumps(_SHAPE | MODELS[name]))
    return folder
