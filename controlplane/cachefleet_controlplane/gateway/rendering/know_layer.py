"""The layer of knowledge: completes a request with its prompt's length and block keys."""

from __future__ import annotations

from collections.abc import Callable

from cachefleet_controlplane.gateway.rendering.prompt_lookup import PromptLookup
from cachefleet_controlplane.gateway.request.request import Layer, Request


class KnowLayer:
    """Has requests answered whose prompts are looked up; ``note`` is called with each."""

    def __init__(
        self, lookup: PromptLookup, note: Callable[[Request], None], answer: Layer, *, clock: Callable[[], float]
    ) -> None:
        self._lookup = lookup
        self._note = note
        self._answer = answer
        self._clock = clock

    async def __call__(self, request: Request) -> None:
        """Answer a request whose input is whole. ApiError for a reference to token ids that nobody keeps."""
        trace = request.arrival.trace
        request = await self._lookup.complete(request)
        continuing, held = request.continuing, request.rendering.held_answer
        request.describe(trace)
        if trace.span is not None:
            trace.span.phase("render", (now := self._clock()) - request.render_seconds, now)
        try:
            self._note(request)
            answer = self._answer(request)
            del request  # the next layer decides how much of it is kept, and how long
            await answer
        finally:
            if held is not None:
                held.drop()
            if continuing is not None:
                trace.handle = continuing.ended(trace.decision.url if trace.decision else "")
