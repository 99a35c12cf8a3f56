"""A tiny model that sees images, and adapters (LoRA) of it; made from fixed seeds, as cachefleet_local.models are.

Idefics3 around a Llama, the product's own tokenizer with a few more tokens. Its weights are vLLM's (``--load-format
dummy``). Of the models that see it is one whose processor needs no torchvision.
"""

from __future__ import annotations

import json
import random
from array import array
from pathlib import Path
from typing import Any, Final

from cachefleet_local.models.tiny_model import HEAD, VOCABULARY, safetensors
from cachefleet_local.models.tiny_tokenizer import tokenizer_files
from cachefleet_local.models.words import WORDS

HIDDEN: Final = 64
LAYERS: Final = 2
RANK: Final = 8
IMAGE_SIDE: Final = 64
MAX_LENGTH: Final = 4096
MARKS: Final = ("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>")
"""What its processor wants to find in the vocabulary; the first stands for one vector of an image."""
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT: Final[dict[str, Any]] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY + HIDDEN,
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": HEAD,
    "max_position_embeddings": MAX_LENGTH,
    "pad_token_id": 0,
}
_VISION: Final[dict[str, Any]] = {
    "model_type": "idefics3_vision",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": IMAGE_SIDE,
    "patch_size": 8,
}
_CONFIG: Final[dict[str, Any]] = {
    "architectures": ["Idefics3ForConditionalGeneration"],
    "model_type": "idefics3",
    "image_token_id": VOCABULARY,
    "scale_factor": 2,
    "tie_word_embeddings": False,
    "dtype": "float32",
    "pad_token_id": 0,
    "vision_config": _VISION,
    "text_config": _TEXT,
}
_IMAGES: Final[dict[str, Any]] = {
    "image_processor_type": "Idefics3ImageProcessor",
    "processor_class": "Idefics3Processor",
    "do_image_splitting": False,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "max_image_size": {"longest_edge": IMAGE_SIDE},
    "size": {"longest_edge": IMAGE_SIDE},
}
_ADAPTER: Final[dict[str, Any]] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": RANK,
    "lora_alpha": 2 * RANK,
    "target_modules": ["q_proj"],
    "bias": "none",
}


def make_model(folder: Path) -> Path:
    """Write the model without weights; returns the folder."""
    folder.mkdir(parents=True)
    files = {name: json.loads(text) for name, text in tokenizer_files(WORDS, VOCABULARY, MAX_LENGTH).items()}
    known = files["tokenizer.json"]["added_tokens"]
    known += [known[-1] | {"id": VOCABULARY + at, "content": mark} for at, mark in enumerate(MARKS)]
    files["tokenizer_config.json"] |= {"processor_class": "Idefics3Processor", "chat_template": CHAT_TEMPLATE}
    files |= {"config.json": _CONFIG, "generation_config.json": {"max_new_tokens": 64}}
    files |= {"preprocessor_config.json": _IMAGES}
    files |= {"processor_config.json": {"processor_class": "Idefics3Processor", "image_seq_len": 16}}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def make_adapter(folder: Path, *, seed: int, layers: str = "model.text_model.layers") -> Path:
    """Write an adapter of the text's attention; returns the folder."""
    chance = random.Random(seed)

    def matrix(rows: int, columns: int) -> tuple[tuple[int, ...], array[float]]:
        return (rows, columns), array("f", (chance.uniform(-0.5, 0.5) for _ in range(rows * columns)))

    tensors = {}
    for layer in range(LAYERS):
        name = f"base_model.model.{layers}.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = matrix(RANK, HIDDEN)
        tensors[f"{name}.lora_B.weight"] = matrix(HIDDEN, RANK)
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(safetensors(tensors))
    (folder / "adapter_config.json").write_text(json.dumps(_ADAPTER))
    return folder
