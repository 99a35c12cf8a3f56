"""What a stream has told of its tokens so far, for answers that end before their usage comes. Pure.

A lower bound in any case: tokens that the engine produced and did not send any more are not in it.
"""

from __future__ import annotations

from typing import Final

from cachefleet_controlplane.gateway.upstream.answers.token_id_cutting import IDS, can_be_cut, count_ids
from cachefleet_controlplane.gateway.upstream.answers.usage import Usage

_TEXTS: Final = (b'"content":"', b'"text":"', b'"reasoning":"', b'"arguments":"')
"""Beginnings of what a choice says, in compact JSON; a quote within text is escaped, so that no text matches."""
_QUOTE: Final = b'"'


class StreamCount:
    """Counts the tokens of one stream by its events."""

    __slots__ = ("_longest", "_prompts", "produced", "usage")

    def __init__(self) -> None:
        self.produced = 0
        """Tokens of all choices."""
        self.usage: Usage | None = None
        """What the worker has told of the prompt; None where it tells at the end alone."""
        self._prompts = self._longest = 0

    def add(self, produced: int, prompt: int) -> None:
        """Add ids that were produced, and those of a prompt (0 for none)."""
        self.produced += produced
        self._prompts += prompt
        self._longest = max(self._longest, prompt)

    def note_ids(self, data: bytes) -> None:
        """Add a chat's or completion's event that was asked to have ids, as JSON."""
        if IDS in data and can_be_cut(data):
            self.add(*count_ids(data))
        elif IDS not in data:
            self.note_text(data)

    def note_text(self, data: bytes) -> None:
        """Add an event that has no ids: of whatever it says, one token at least was produced."""
        for name in _TEXTS:
            at = data.find(name)
            if at >= 0 and data[at + len(name) : at + len(name) + 1] != _QUOTE:
                self.produced += 1
                return

    def so_far(self, *, prompts: int, choices: int, known_prompt: int) -> Usage:
        """The usage as far as it is known; ``known_prompt`` are the prompt's tokens where the worker told none."""
        if self.usage is not None:
            produced = max(self.produced, self.usage.completion_tokens or 0)
            return Usage(self.usage.prompt_tokens or known_prompt, produced, self.usage.cached_tokens)
        # Each choice begins with its prompt's ids.
        told = self._longest if prompts <= 1 else self._prompts // max(1, choices)
        return Usage(told or known_prompt, self.produced)
