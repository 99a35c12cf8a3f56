"""Where a rendered prompt waits for word, on its way from the renderer to the engine.

It travels in a context variable: vLLM renders in the task that serves the request, or in one that it starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from cachefleet_core.engine.held_requests import LateMembers

FEATURE: Final = "held"
_KEYED: Final = frozenset({"token", "multimodal"})
Told = Callable[[Mapping[str, Any] | None], Awaitable[None]]


class HeldPrompt:
    """The first prompt of one request; ``tell`` says its keys, and returns when it is to be answered."""

    def __init__(self, tell: Told) -> None:
        self._tell = tell
        self._told = False
        self.members = LateMembers()
        """Members of the body that came with word to answer."""

    async def rendered(self, result: Any) -> None:
        """Take what the renderer has made; only the first call waits."""
        if self._told:
            return
        self._told = True
        await self._tell(only_prompt(result))


held: ContextVar[HeldPrompt | None] = ContextVar("cachefleet_held_prompt", default=None)


def only_prompt(result: Any) -> Mapping[str, Any] | None:
    """The one prompt of token ids in a render method's result; None for several, embeddings, encoders."""
    prompts = result[1] if isinstance(result, tuple) else result
    prompt = prompts[0] if len(prompts) == 1 else {}
    return prompt if prompt.get("type") in _KEYED and prompt.get("prompt_token_ids") else None
