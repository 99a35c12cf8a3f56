"""One call of vLLM's renderer: a digest of everything that it is given, and its result as it is kept. Pure.

A prompt is what the renderer makes of its arguments: messages or prompts, the template and what it is given, bounds
and truncation, salt. So calls of equal arguments have the same result, whatever request they belong to.
"""

from __future__ import annotations

import dataclasses
import hashlib
import marshal
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

_PLAIN: Final = 0
"""marshal's first format: equal values have equal bytes, whichever objects they share."""
_IDS: Final = "prompt_token_ids"
_TOKENS: Final = "token"
_PER_PROMPT: Final = 4096
_PER_CHARACTER: Final = 4
"""Bytes that text may take: as argument, and as rendered prompt, in up to two bytes a character."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call by its digest; ``size`` is the length of its arguments in bytes."""

    digest: bytes
    size: int


def call(method: str, arguments: Mapping[str, Any]) -> Call | None:
    """A call of a render method; None where an argument is not plain data, so that calls cannot be compared."""
    try:
        given = marshal.dumps([method, [[name, _data(value)] for name, value in sorted(arguments.items())]], _PLAIN)
    except ValueError:
        return None
    return Call(hashlib.sha256(given).digest(), len(given))


def _data(value: Any) -> Any:
    """An object of vLLM's parameters as its fields; plain data as it is."""
    kind: Any = type(value)
    return [kind.__name__, [[name, getattr(value, name)] for name in names]] if (names := _members(kind)) else value


@cache
def _members(kind: Any) -> tuple[str, ...]:
    """Names of a dataclass's fields; none of anything else."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """What one call has rendered: one prompt of text, with its conversations where it is a chat."""

    call: Call
    ids: array[int] = dataclasses.field(repr=False)
    members: Mapping[str, Any] = dataclasses.field(repr=False)
    conversations: Sequence[Sequence[Mapping[str, Any]]] | None = dataclasses.field(default=None, repr=False)

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return _PER_PROMPT + _PER_CHARACTER * self.call.size + self.ids.itemsize * len(self.ids)

    def result(self, *, arrival: float) -> Any:
        """The call's result, as if it had been called now: it is the caller's own to change."""
        prompts = [{**self.members, _IDS: self.ids.tolist(), "arrival_time": arrival}]
        if self.conversations is None:
            return prompts
        return [[dict(message) for message in each] for each in self.conversations], prompts


def rendered(made: Call, result: Any) -> RenderedPrompt | None:
    """What a call has rendered, where it is one prompt of text; None for several, media, embeddings, encoders.

    None also for ids that are none: vLLM passes those of a completion's body through unchecked.
    """
    conversations, prompts = result if isinstance(result, tuple) else (None, result)
    prompt = prompts[0] if len(prompts) == 1 else {}
    if prompt.get("type") != _TOKENS or not isinstance(prompt.get(_IDS), list):
        return None
    members = {name: value for name, value in prompt.items() if name not in {_IDS, "arrival_time"}}
    kept = None if conversations is None else [[dict(message) for message in each] for each in conversations]
    try:
        return RenderedPrompt(made, array("I", prompt[_IDS]), members, kept)
    except (OverflowError, TypeError):
        return None
