"""Conversations of a given length in a model's own tokens, and the turns that follow."""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.continuation_models import Family
from tests.worker.plugin.tokens.styles import BIG, trained

MESSAGES: Final = 100
NEW_TOKENS: Final = 100
ANSWER_TOKENS: Final = 20
REASONING_TOKENS: Final = 20

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Length:
    """A conversation's length, its bars for the time to the first token as a share of stock's, and rounds of it."""

    name: str
    tokens: int
    first_token: float
    rounds: int


LENGTHS: Final = (Length("8k", 8_000, 0.8, 24), Length("64k", 64_000, 0.6, 14))


class Writer:
    """Prose and code that no one has seen: lines of Python's library in random order."""

    def __init__(self, family: Family, seed: int) -> None:
        self._family = family
        self._chance = random.Random(seed)
        folder = Path(sysconfig.get_paths()["stdlib"])
        files = (path.read_text(errors="ignore") for path in sorted(folder.glob("*.py")))
        self._lines = [line for text in files for line in text.splitlines() if line.strip()]
        self._tokenizer = trained(family.style, BIG)

    def text(self, tokens: int) -> str:
        """So many tokens, or one or two fewer."""
        text = "\n".join(self._chance.choices(self._lines, k=tokens // 2 + 1))  # a line has more than two
        while len(places := self._tokenizer.encode(text, add_special_tokens=False).offsets) <= tokens:
            text += "\n" + self._chance.choice(self._lines)
        return text[: places[tokens][0]].rstrip()

    def message(self, number: int, tokens: int) -> dict[str, Any]:
        """The message at this place; users and assistant take turns."""
        if number % 2 == 0:
            return {"role": "user", "content": self.text(tokens)}
        message = {"role": "assistant", "content": self.text(tokens)}
        return message | ({"reasoning": self.text(REASONING_TOKENS)} if self._family.template.reasoning else {})

    def turns(self, tokens: int) -> Iterator[Messages]:
        """The list of messages at each turn: first all but the last of 100 messages, then two more each time."""
        messages = [self.message(number, tokens // MESSAGES) for number in range(MESSAGES - 1)]
        while True:
            yield list(messages)
            messages.append(self.message(len(messages), ANSWER_TOKENS))
            messages.append(self.message(len(messages), NEW_TOKENS))
