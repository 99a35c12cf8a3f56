"""Memoised tokenisation against the plain encoder, on a tokenizer of 60,000 entries trained here.

    python -m bench.tokens

Both sides are called as vLLM's renderer calls them, in turn, each text new at its end. Before anything is timed the ids
are checked to be equal; the times are medians, in milliseconds. ``run`` gives the rows to other programs.
"""

from __future__ import annotations

import random
import statistics
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.settings import PluginSettings
from cachefleet_worker.plugin.tokens.cached_encoder import CachedEncoder
from tests.worker.plugin.tokens.styles import BIG, trained

ROUNDS: Final = 41
SEED: Final = 77
MAX_LENGTH: Final = 131_072
SETTINGS: Final = PluginSettings()
STYLES: Final = {"qwen": "ChatML", "llama3": "Llama-3", "mistral": "Metaspace"}


class Row(TypedDict):
    """One line of the table."""

    row: str
    ours: float
    peer: float
    ratio: float
    unit: str


@dataclass(frozen=True, slots=True)
class Case:
    """A text that is known, and what is new in each round."""

    name: str
    known: int
    """Tokens, about."""
    new: int
    one_message: bool = False
    """Whether all of it is the one message that a conversation consists of."""


CASES: Final = (
    Case("10k tokens, 90 % shared", 9_000, 1_000),
    Case("10k tokens, 99 % shared", 9_900, 100),
    Case("one message of 11k tokens that grows by a paragraph", 11_000, 120, one_message=True),
    Case("50k tokens, 90 % shared", 45_000, 5_000),
    Case("10k tokens, nothing shared", 0, 10_000),
)


class Sides:
    """The plain encoder and ours, over one tokenizer."""

    def __init__(self, style: str) -> None:
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - takes seconds

        fast: Any = PreTrainedTokenizerFast
        self.tokenizer = fast(tokenizer_object=trained(style, BIG))
        capabilities = Capabilities()
        self.encoder = CachedEncoder(
            capabilities,
            Faults(capabilities),
            max_bytes=SETTINGS.tokens_cache_bytes,
            sample_ratio=0.0,  # samples are checked in the background, which on few cores would be timed too
            rng=random.Random(SEED),
        )
        refusal = self.encoder.prepare(self.tokenizer)
        assert refusal is None, refusal

    def plain(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, truncation=True, max_length=MAX_LENGTH, add_special_tokens=False)[
            "input_ids"
        ]
        return ids

    def ours(self, text: str) -> list[int] | None:
        return self.encoder.encode(
            self.tokenizer,
            text,
            "salt",
            plain=lambda: self.plain(text),
            add_special_tokens=False,
            max_length=MAX_LENGTH,
        )


class Writer:
    """Prose and code that no one has seen: lines of Python's library in random order."""

    def __init__(self, sides: Sides, style: str, rng: random.Random) -> None:
        self._rng = rng
        self._lines = [
            line for path in _sources() for line in path.read_text(errors="ignore").splitlines() if line.strip()
        ]
        self._frame = FRAMES[style]
        sample = "\n".join(rng.choices(self._lines, k=2_000))
        self._characters = len(sample) / len(sides.plain(sample))
        """Per token."""

    def message(self, tokens: int) -> str:
        """About so many tokens of text."""
        lines: list[str] = []
        characters = tokens * self._characters
        while characters > 0:
            lines.append(self._rng.choice(self._lines))
            characters -= len(lines[-1]) + 1
        return "\n".join(lines)

    def turns(self, tokens: int) -> str:
        """A conversation of about so many tokens, in messages of up to 600."""
        text = ""
        for number in range(0, tokens, 600):
            text += self._frame(("user", "assistant")[number // 600 % 2], self.message(min(600, tokens - number)))
        return text

    def opening(self, text: str) -> str:
        """The start of a message that goes on."""
        return self._frame("user", text + "\0").partition("\0")[0]


def _chatml(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def _llama3(role: str, text: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>"


def _mistral(role: str, text: str) -> str:
    return f"[INST] {text} [/INST]" if role == "user" else f" {text}</s>"


FRAMES: Final[dict[str, Callable[[str, str], str]]] = {"qwen": _chatml, "llama3": _llama3, "mistral": _mistral}


def run(*, rounds: int = ROUNDS, styles: tuple[str, ...] = tuple(STYLES)) -> list[Row]:
    """Every case on every style: milliseconds to encode one text. AssertionError where ids differ."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, on import
        return [row for style in styles for row in _rows(style, rounds)]


def _rows(style: str, rounds: int) -> Iterator[Row]:
    sides = Sides(style)
    writer = Writer(sides, style, random.Random(SEED))
    for case in CASES:
        texts = list(_texts(case, writer, rounds + 1))
        ours, peer = _timed(sides, texts)
        yield Row(
            row=f"{STYLES[style]}: {case.name}",
            ours=round(ours, 3),
            peer=round(peer, 3),
            ratio=round(ours / peer, 4),
            unit="ms",
        )


def _texts(case: Case, writer: Writer, count: int) -> Iterator[str]:
    if case.one_message:
        known = writer.opening(writer.message(case.known))
        yield from (f"{known} {writer.message(case.new)}" for _ in range(count))
    else:
        known = writer.turns(case.known)
        yield from (known + writer.turns(case.new) for _ in range(count))


def _timed(sides: Sides, texts: list[str]) -> tuple[float, float]:
    """Medians of ours and of the plain encoder, in milliseconds. The first text is only what is known before."""
    for text in texts[:1]:
        assert sides.ours(text) == sides.plain(text)
    _check(sides, texts)
    ours: list[float] = []
    peer: list[float] = []
    for number, text in enumerate(texts[1:]):
        both = [(sides.ours, ours), (sides.plain, peer)]
        for side, times in both if number % 2 else reversed(both):
            started = time.perf_counter()
            side(text)
            times.append((time.perf_counter() - started) * 1000)
    return statistics.median(ours), statistics.median(peer)


def _check(sides: Sides, texts: list[str]) -> None:
    """The same ids, asked under another tenant's salt so that what is timed later is not known yet."""
    for text in texts[1:]:
        ids = sides.encoder.encode(
            sides.tokenizer, text, "checked", plain=list, add_special_tokens=False, max_length=MAX_LENGTH
        )
        assert ids == sides.plain(text), "ids differ"


def _sources() -> list[Path]:
    return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))


def main() -> None:
    rows = run()
    width = max(len(row["row"]) for row in rows)
    print(f"{'':{width}}  {'ours':>8}  {'plain':>8}  {'ratio':>6}")
    for row in rows:
        print(f"{row['row']:{width}}  {row['ours']:8.2f}  {row['peer']:8.2f}  {row['ratio']:6.3f}  {row['unit']}")


if __name__ == "__main__":
    main()
