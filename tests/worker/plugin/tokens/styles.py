"""Tokenizers of every style that models use, trained here from Python's own sources; kept under ~/.cache/cachefleet."""

from __future__ import annotations

import os
import random
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CACHE: Final = Path.home() / ".cache" / "cachefleet" / "tokenizers"
SMALL: Final = 1_500
BIG: Final = 60_000
VERSION: Final = "5"

LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN: Final = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK: Final = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
KANA: Final = "[一-龥぀-ゟ゠-ヿ]+"  # noqa: RUF001 - as DeepSeek writes it

WORLD: Final = (
    "Zażółć gęślą jaźń, naïve café, Straße, ﬁne. ",
    "漢字かな交じり文と한국어와 中文字符，标点。",  # noqa: RUF001 - full-width signs are wanted
    "Съешь ещё этих мягких булок. Γειά σου Κόσμε! ",  # noqa: RUF001 - Greek is wanted
    "مرحبا بالعالم. שלום עולם. हिन्दी में पाठ। ภาษาไทย ",
    "🙂 👩\u200d👩\u200d👧 🇫🇷 🚀 👍🏽 ∑∫√ → ✓ ",
    '\n\n\t- item 1\r\n\t- item 2\n  { "key": [1, 2.5, null] }\n',
)


@dataclass(frozen=True)
class Style:
    name: str
    make: Callable[[], tuple[Tokenizer, Any]]
    """An empty tokenizer and its trainer's class."""
    tokens: tuple[AddedToken, ...]
    options: tuple[tuple[str, Any], ...] = ()
    template: tuple[str, str] | None = None
    """What add_special_tokens puts before and after."""


def special(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, special=True, **({"normalized": False} | flags))


def plain(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, special=False, **({"normalized": False} | flags))


def _byte_level(normalizer: Any = None, *before: Any, **bpe: Any) -> Tokenizer:
    made = Tokenizer(models.BPE(**bpe))
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = (
        pre_tokenizers.Sequence([*before, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        if before
        else pre_tokenizers.ByteLevel(add_prefix_space=False)
    )
    made.decoder = decoders.ByteLevel()
    return made


def _marked(normalizer: Any, pre_tokenizer: Any, model: Any = None) -> Tokenizer:
    made = Tokenizer(model or models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer is not None:
        made.normalizer = normalizer
    if pre_tokenizer is not None:
        made.pre_tokenizer = pre_tokenizer
    return made


def _bert() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def _split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


BPE: Final = trainers.BpeTrainer
ALPHABET: Final = (("initial_alphabet", pre_tokenizers.ByteLevel.alphabet()),)
CHATML: Final = tuple(special(f"<|{name}|>") for name in ("endoftext", "im_start", "im_end", "vision_start"))
TOOLS: Final = tuple(plain(name) for name in ("<tool_call>", "</tool_call>", "<think>", "</think>"))
LLAMA3_TOKENS: Final = tuple(
    special(f"<|{name}|>")
    for name in ("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id", "python_tag")
) + tuple(special(f"<|reserved_special_token_{number}|>") for number in range(48))
SENTENCE: Final = tuple(special(name) for name in ("<unk>", "<s>", "</s>"))
MISTRAL: Final = tuple(special(f"[{name}]") for name in ("INST", "/INST", "TOOL_CALLS", "AVAILABLE_TOOLS"))
GEMMA: Final = tuple(special(name) for name in ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"))

STYLES: Final = {
    style.name: style
    for style in (
        Style("gpt2", lambda: (_byte_level(), BPE), (special("<|endoftext|>"),), ALPHABET),
        Style(
            "llama3",
            lambda: (_byte_level(None, _split(LLAMA3), ignore_merges=True), BPE),
            LLAMA3_TOKENS,
            ALPHABET,
            ("<|begin_of_text|>", ""),
        ),
        Style("qwen", lambda: (_byte_level(normalizers.NFC(), _split(QWEN)), BPE), CHATML + TOOLS, ALPHABET),
        Style(
            "o200k",
            lambda: (_byte_level(None, _split(O200K)), BPE),
            tuple(special(f"<|{name}|>") for name in ("start", "end", "message", "channel", "return")),
            ALPHABET,
        ),
        Style(
            "deepseek",
            lambda: (_byte_level(normalizers.Sequence([]), _split(r"\p{N}{1,3}"), _split(KANA), _split(DEEPSEEK)), BPE),
            tuple(special(f"<｜{name}｜>") for name in ("begin▁of▁sentence", "User", "Assistant")),  # noqa: RUF001
            ALPHABET,
            ("<｜begin▁of▁sentence｜>", ""),  # noqa: RUF001 - its own vertical bars
        ),
        Style(
            "phi3",
            lambda: (_byte_level(), BPE),
            (
                *(special(f"<|{name}|>", rstrip=True) for name in ("user", "assistant", "system", "end")),
                special("<|endoftext|>"),
                *(plain(" " * count, normalized=True) for count in range(2, 8)),
            ),
            ALPHABET,
        ),
        Style(
            "strips",
            lambda: (_byte_level(), BPE),
            (
                special("<s>"),
                special("<mask>", lstrip=True),
                special("<both>", lstrip=True, rstrip=True),
                special("<right>", rstrip=True),
                plain("word", single_word=True),
                plain("<s>>"),
                plain("t<m"),
                plain("\n\n"),
                plain("Hello", normalized=True),
                special("</s>"),
            ),
            ALPHABET,
        ),
        Style(
            "mistral",
            lambda: (_marked(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)), BPE),
            SENTENCE + MISTRAL,
            (),
            ("<s>", ""),
        ),
        Style(
            "gemma",
            lambda: (_marked(normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous")), BPE),
            GEMMA,
            (),
            ("<bos>", ""),
        ),
        Style(
            "llama2",
            lambda: (
                _marked(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None),
                BPE,
            ),
            SENTENCE,
            (),
            ("<s>", ""),
        ),
        Style(
            "unigram",
            lambda: (
                _marked(normalizers.NFKC(), pre_tokenizers.Metaspace(prepend_scheme="always"), models.Unigram()),
                trainers.UnigramTrainer,
            ),
            (special("<pad>"), special("</s>"), special("<extra_id_0>", lstrip=True), special("<unk>")),
            (("unk_token", "<unk>"),),
            ("", "</s>"),
        ),
        Style(
            "unigram_first",
            lambda: (
                _marked(None, pre_tokenizers.Metaspace(prepend_scheme="first"), models.Unigram()),
                trainers.UnigramTrainer,
            ),
            (*SENTENCE, special("<mask>", lstrip=True), special("<right>", rstrip=True)),
            (("unk_token", "<unk>"),),
            ("<s>", "</s>"),
        ),
        Style(
            "wordpiece",
            lambda: (_bert(), trainers.WordPieceTrainer),
            tuple(special(f"[{name}]") for name in ("PAD", "UNK", "CLS", "SEP", "MASK")),
            (),
            ("[CLS]", "[SEP]"),
        ),
    )
}


def trained(name: str, size: int = SMALL) -> Tokenizer:
    """The style's tokenizer with ``size`` entries, or a few more."""
    kept = CACHE / f"{name}-{size}-{tokenizers.__version__}-{VERSION}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        waiting = kept.with_suffix(f".{os.getpid()}")
        waiting.write_text(_train(STYLES[name], size).to_str())
        waiting.rename(kept)
    return Tokenizer.from_str(kept.read_text())


def _train(style: Style, size: int) -> Tokenizer:
    made, trainer = style.make()
    options = {"vocab_size": size, "show_progress": False} | dict(style.options)
    if trainer is not trainers.UnigramTrainer:
        options["limit_alphabet"] = 400
    unknown = [token for token in style.tokens if token.content in {"<unk>", "[UNK]"}]
    unsplit = isinstance(made.model, models.BPE) and made.decoder is None
    pre_tokenizer = made.pre_tokenizer
    if unsplit:  # as SentencePiece trains: word by word, so that no entry holds the start of a second word
        made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.train_from_iterator(
        _corpus(size, slow=trainer is trainers.UnigramTrainer), trainer(special_tokens=unknown, **options)
    )
    if unsplit:
        made.pre_tokenizer = pre_tokenizer
    for token in style.tokens:
        (made.add_special_tokens if token.special else made.add_tokens)([token])
    if style.template is not None:
        before, after = style.template
        single = " ".join(part for part in (before, "$A", after) if part)
        ends = [(part, made.token_to_id(part)) for part in (before, after) if part]
        made.post_processor = processors.TemplateProcessing(single=single, special_tokens=ends)
    return made


def _corpus(size: int, *, slow: bool) -> Iterator[str]:
    """Sources of Python's library, and words of the world; more of them for a larger vocabulary."""
    rng = random.Random(0)
    left = size * (60 if slow else 400)
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if left < 0:
            return
        if "site-packages" in path.parts and size == SMALL:
            continue
        text = path.read_text(errors="ignore")[:200_000]
        left -= len(text)
        yield text
        yield "".join(rng.choices(WORLD, k=4))
