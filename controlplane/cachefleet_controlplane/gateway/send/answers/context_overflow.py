"""A prompt that is too long for its model: read from vLLM's words, told in those that clients know. Pure.

Agents shorten their history where they read OpenAI's code ``context_length_exceeded`` or Anthropic's "prompt is too
long: N tokens > M maximum"; of a plain 400 they only ask again. vLLM (0.28 to 0.33) says 400 in six ways.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.wire.errors import ANTHROPIC_PATH, RESPONSES_PATH, ApiError

CONTEXT_LENGTH_EXCEEDED: Final = "context_length_exceeded"
MAX_WORDS: Final = 4096
"""Longest message that is searched: vLLM's are shorter."""
_COMPLETIONS_PATH: Final = "/v1/completions"
_LIMIT: Final = r"(?P<limit>\d{1,9})"
_TOKENS: Final = r"(?P<tokens>\d{1,9})"
_OUTPUT: Final = r"(?P<output>\d{1,9})"
_CONTEXT: Final = rf"[Tt]his model's maximum context length is {_LIMIT} tokens"
_INPUT: Final = rf"your prompt contains (?:at least )?{_TOKENS} input tokens"
_AND_OUTPUT: Final = rf"plus the number of requested output tokens \(at least {_OUTPUT}\) is longer"
_WORDS: Final = tuple(
    map(
        re.compile,
        (
            rf"{_CONTEXT}\. However, you requested {_OUTPUT} output tokens and {_INPUT}",
            rf"{_CONTEXT}\. However, {_INPUT}",
            rf"{_CONTEXT}\. However, your prompt contains \d+ characters",
            rf"too large: {_OUTPUT}\. {_CONTEXT} and your request has {_TOKENS} input tokens",
            rf"prompt \(length {_TOKENS}\) (?:is longer|{_AND_OUTPUT}) than the maximum model length of {_LIMIT}",
            rf"Input length \({_TOKENS}\) exceeds model's maximum context length \({_LIMIT}\)",
        ),
    )
)


class Overflow(Struct, frozen=True):
    """Tokens of a prompt, at least, and of the output asked for with it, where both do not fit into ``limit``."""

    tokens: int
    limit: int
    output: int = 0

    def error(self, path: str, message: str) -> ApiError:
        """Return the ApiError 400 of the API that ``path`` belongs to; ``message`` is for OpenAI's."""
        return ApiError(
            400,
            self._to_anthropic() if path.startswith(ANTHROPIC_PATH) else message,
            param={_COMPLETIONS_PATH: "prompt", RESPONSES_PATH: "input"}.get(path, "messages"),
            code=CONTEXT_LENGTH_EXCEEDED,
        )

    def _to_anthropic(self) -> str:
        if self.tokens > self.limit or not self.output:
            return f"prompt is too long: {self.tokens} tokens > {self.limit} maximum"
        return (
            f"input length and `max_tokens` exceed context limit: {self.tokens} + {self.output} > {self.limit}, "
            "decrease input length or `max_tokens` and try again"
        )


def overflow_in(message: str) -> Overflow | None:
    """Return what a worker's message says of a prompt that is too long; None where it says something else."""
    words = message[:MAX_WORDS]
    found = next((match for pattern in _WORDS if (match := pattern.search(words))), None)
    if found is None:
        return None
    counts = {name: int(digits) for name, digits in found.groupdict().items() if digits is not None}
    limit = counts["limit"]
    return Overflow(tokens=counts.get("tokens", limit + 1), limit=limit, output=counts.get("output", 0))
