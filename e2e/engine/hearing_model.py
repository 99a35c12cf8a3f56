"""A tiny speech model: Whisper with the product's own tokenizer and Whisper's marks; its weights are vLLM's dummies.

What it writes down means nothing; that it takes recordings, forms and streams as any Whisper does is what counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from cachefleet_local.models.tiny_model import VOCABULARY
from cachefleet_local.models.tiny_tokenizer import END_OF_TEXT, tokenizer_files
from cachefleet_local.models.words import WORDS

MAX_LENGTH: Final = 448
SECONDS: Final = 30
"""Of a recording that are heard at once."""
LANGUAGES: Final = ("en", "de")
MARKS: Final = (
    *("<|startoftranscript|>", *(f"<|{language}|>" for language in LANGUAGES)),
    *("<|translate|>", "<|transcribe|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
    *(f"<|{at / 50:.2f}|>" for at in range(3)),
)
START: Final = VOCABULARY
_CONFIG: Final[dict[str, Any]] = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "dtype": "float32",
    "vocab_size": VOCABULARY + 64,
    "d_model": 64,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "num_mel_bins": 80,
    "max_source_positions": 50 * SECONDS,
    "max_target_positions": MAX_LENGTH,
    "decoder_start_token_id": START,
    "is_encoder_decoder": True,
    "tie_word_embeddings": True,
}
_SOUND: Final[dict[str, Any]] = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "processor_class": "WhisperProcessor",
    "feature_size": 80,
    "sampling_rate": 16_000,
    "hop_length": 160,
    "chunk_length": SECONDS,
    "n_fft": 400,
    "n_samples": 16_000 * SECONDS,
    "nb_max_frames": 100 * SECONDS,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": False,
}


def make_model(folder: Path) -> Path:
    """Write the model without weights; returns the folder."""
    folder.mkdir(parents=True)
    files = {name: json.loads(text) for name, text in tokenizer_files(WORDS, VOCABULARY, MAX_LENGTH).items()}
    known = files["tokenizer.json"]["added_tokens"]
    end = next(token["id"] for token in known if token["content"] == END_OF_TEXT)
    known += [known[-1] | {"id": START + at, "content": mark} for at, mark in enumerate(MARKS)]
    files["tokenizer_config.json"] |= {"processor_class": "WhisperProcessor"}
    ends = {"eos_token_id": end, "bos_token_id": end, "pad_token_id": end}
    files |= {"config.json": _CONFIG | ends, "generation_config.json": ends | {"max_new_tokens": 24}}
    files |= {"preprocessor_config.json": _SOUND}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder
