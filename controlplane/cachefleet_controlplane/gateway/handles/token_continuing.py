"""A completion that continues token ids which one worker keeps, and that nobody else has.

Its body refers to them, so only that worker can be asked for its block keys, and any other is sent all ids, which that
worker gives. Where it has lost them the client is told so (409) and sends all ids itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.handles.handle_memory import HandleMemory, HandleMetrics
from cachefleet_controlplane.gateway.handles.sending import HandleOutcome, Send, keep_header, kept_prefix, refusal_code
from cachefleet_controlplane.gateway.handles.token_reference import plain_body, whole_body
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import Answer, AttemptResult
from cachefleet_controlplane.wire.errors import ApiError, error_body
from cachefleet_controlplane.wire.http_exchange import JSON
from cachefleet_core.continuation import REF_MEMBER, Fingerprints, PromptCacheRef, RefusalCode

Ids = Callable[[str, bytes], Awaitable[list[int] | None]]


class TokenContinuing:
    """Sends one completion; ``ref`` is None where it only asks for a reference to its own ids."""

    def __init__(
        self,
        memory: HandleMemory,
        ref: PromptCacheRef | None,
        fingerprints: Fingerprints,
        *,
        keepers: frozenset[str],
        metrics: HandleMetrics,
        ids: Ids,
    ) -> None:
        """``ids`` asks the worker at a URL for all ids of a body; None where it does not give them."""
        self._memory = memory
        self._ref = ref
        self._fingerprints = fingerprints
        self._keepers = keepers
        self._metrics = metrics
        self._ids = ids
        self._refused = RefusalCode.HANDLE_UNKNOWN
        self._continued = ""
        self.first = "" if ref is None else memory.placed(ref.handle)

    @property
    def only(self) -> bool:
        """Its body has a reference."""
        return self._ref is not None

    def headers(self, url: str) -> list[tuple[str, str]]:
        """Return the header that has a worker keep the request; none where it cannot."""
        return [keep_header(self._fingerprints)] if url in self._keepers else []

    async def send(self, url: str, body: bytes, send: Send) -> AttemptResult:
        """Send a body: as it is to the worker that keeps its ids, whole to any other."""
        if self._ref is not None and url != self.first:
            ids = await self._ids(self.first, body)
            if ids is None:
                return self._refused_answer()
            body = whole_body(body, ids)
        opened = await send(body if url in self._keepers else plain_body(body))
        return self._learnt(url, opened)

    def answered(self, url: str, opened: AttemptResult) -> AttemptResult:
        """Learn what the worker keeps, now that it has answered."""
        return self._learnt(url, opened)

    def rendered(self, tokens: int) -> None:
        """Refuse what the worker that keeps its ids gives no keys for. ApiError 409."""
        if self.only and not tokens:
            raise self._refusal()

    async def whole(self, body: bytes) -> bytes:
        """Return the body with all ids, which goes to any worker from now on. ApiError 409."""
        if self._ref is None:
            return body
        ids = await self._ids(self.first, body)
        if ids is None:
            raise self._refusal()
        self._ref = None
        return whole_body(body, ids)

    def _refusal(self) -> ApiError:
        """Return the client's error where its reference is not continued."""
        message = "The prefix is not kept any more, or is another one: send all token ids as `prompt`."
        return ApiError(409, message, param=REF_MEMBER, code=self._refused)

    def _refused_answer(self) -> AttemptResult:
        """Return the same as a worker's answer."""
        body = error_body(Endpoint.COMPLETIONS, self._refusal())
        return AttemptResult(Outcome.ANSWERED, Answer(409, (JSON,), body))

    def ended(self, url: str) -> HandleOutcome | None:
        """Count and return what became of the reference; None where there was none."""
        if self._ref is None:
            return None
        outcome = HandleOutcome.HIT if self._continued and self._continued == url else HandleOutcome.MISS
        self._metrics.request(outcome)
        return outcome

    def _learnt(self, url: str, opened: AttemptResult) -> AttemptResult:
        code = refusal_code(opened.answer)
        if code is not None:
            self._refused = code
            self._metrics.refused(code)
            return replace(opened, answer=self._refused_answer().answer)
        if opened.succeeded and url == self.first:
            self._continued = url
        kept = kept_prefix(opened.kept)
        if kept is not None:
            self._memory.place(kept.handle, url)
        return opened
