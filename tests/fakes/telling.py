"""From a generation's ids to its text, as vLLM's front end does it: whole characters, ended by stop strings."""

from __future__ import annotations

from collections.abc import Sequence as Items

from tests.fakes.finish import Finish
from tests.fakes.scheduler import Sequence
from tests.fakes.tokenizer import Decoder


class Telling:
    """One generation on its way out. While stop strings may still match, their length less one is held back."""

    def __init__(self, generation: Sequence, decoder: Decoder, stops: Items[str], *, include_stop: bool) -> None:
        self._generation = generation
        self._decoder = decoder
        self._stops = [stop for stop in stops if stop]
        self._include_stop = include_stop
        self._hold = 0 if include_stop or not self._stops else max(map(len, self._stops)) - 1
        self._text = ""
        self._told = 0
        self._given = generation.prompt_tokens
        self.matched: str | None = None

    def take(self) -> tuple[list[int], str]:
        """The ids since the last call and the text to tell now; ``matched`` is set where a stop string ends it."""
        if self.matched is not None:
            return [], ""  # steps that were on their way
        ids = self._generation.tokens[self._given :]
        for count, token in enumerate(ids, start=1):
            if self._is_silent(token, last=count == len(ids)):
                continue
            before = len(self._text)
            self._text += self._decoder.feed([token])
            if self._cut(before):
                ids = ids[:count]
                break
        self._given += len(ids)
        return ids, self._ready()

    @property
    def length(self) -> int:
        """Tokens of the prompt and of what was taken."""
        return self._given

    def _is_silent(self, token: int, *, last: bool) -> bool:
        """The id that ends a generation is not part of its text."""
        stopped = last and self._generation.finish is Finish.STOP
        return stopped and not self._include_stop and token == self._generation.tokens[-1]

    def _cut(self, before: int) -> bool:
        for stop in self._stops:
            at = self._text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                self.matched = stop
                self._text = self._text[: at + len(stop) * self._include_stop]
                return True
        return False

    def _ready(self) -> str:
        over = self.matched is not None or self._generation.finish is not None
        end = len(self._text) if over else max(self._told, len(self._text) - self._hold)
        text = self._text[self._told : end]
        self._told = max(self._told, end)
        return text
