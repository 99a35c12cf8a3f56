"""Token ids of what vLLM renders for a request, recorded for whoever keeps its conversation.

They travel in a context variable: vLLM renders in the task that serves the request.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from cachefleet_worker.plugin.prompts.held_prompt import only_prompt


@dataclass(slots=True)
class Recording:
    """What is rendered meanwhile: the last call's ids, and how many calls there were."""

    ids: array[int] | None = None
    calls: int = 0

    def add(self, result: Any) -> None:
        """Note what a call of a render method has made."""
        self.ids = text_ids(result)
        self.calls += 1

    @property
    def only(self) -> array[int] | None:
        """The ids of the only call; None where there were several, or where it made no single prompt of text."""
        return self.ids if self.calls == 1 else None


recorded: ContextVar[Recording | None] = ContextVar("cachefleet_recorded_prompt", default=None)


@contextmanager
def recording() -> Iterator[Recording]:
    """Record what is rendered in this context."""
    made = Recording()
    token = recorded.set(made)
    try:
        yield made
    finally:
        recorded.reset(token)


def text_ids(result: Any) -> array[int] | None:
    """Token ids of a render method's result; None for several prompts, media, embeddings, encoders.

    None also for ids that are none: vLLM passes those of a completion's body through unchecked.
    """
    prompt = only_prompt(result)
    if prompt is None or prompt["type"] != "token" or not isinstance(prompt["prompt_token_ids"], list):
        return None
    try:
        return array("I", prompt["prompt_token_ids"])
    except (OverflowError, TypeError):
        return None
