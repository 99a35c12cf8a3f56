"""Traces of requests; a decision as headers of an answer, as the body of ``POST /v1/route``, as a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, cast

import msgspec
from cachefleet_native import PromptShape
from msgspec import Struct
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.gateway.handles.sending import HandleOutcome
from cachefleet_controlplane.gateway.request.rendered_prompt import Rendering
from cachefleet_controlplane.gateway.send.answers.usage import Usage
from cachefleet_controlplane.prompt_causes.prompt_lint import LintReport
from cachefleet_controlplane.routing.decision import CandidateScore, Decision
from cachefleet_controlplane.routing.later_scores import LaterScores
from cachefleet_controlplane.store.decision_records import (
    AttemptRecord,
    CandidateRecord,
    DecisionRecord,
    EndedBy,
    LostRecord,
    ShortfallRecord,
)
from cachefleet_controlplane.tracing.request_span import RequestSpan
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.wire.http_exchange import CLIENT_GONE_STATUS
from cachefleet_core.pool.policy import Isolation
from cachefleet_core.tenancy import TenantId

_SHOWN_TO_TENANTS: Final = ("worker", "pool", "rank", "chosen", "matched_blocks", "predicted_tokens")
"""Fields of a candidate."""
_NOBODY: Final = TenantId("")

TRACE: Final = "cachefleet.trace"
"""Member of an ASGI scope: the notes on a request that is decided on."""


def decision_headers(decision_id: str, decision: Decision | None) -> list[Header]:
    """Return the headers that tell of a decision: id, knowledge, worker; the id alone for None."""
    headers = [(b"x-cachefleet-decision", decision_id.encode())]
    if decision is not None:
        headers.append((b"x-cachefleet-knowledge", decision.knowledge.encode()))
    if decision is not None and decision.worker:
        headers.append((b"x-cachefleet-worker", decision.worker.encode()))
    return headers


def decision_body(
    decision_id: str, info: RequestInfo, decision: Decision, rendering: Rendering, lint: LintReport | None = None
) -> bytes:
    """Return a decision with all candidates as JSON, for the tenant that asks, with what a lint has found.

    Nothing of the prompt but its length; of workers their names and what they hold of this prompt, not their addresses,
    nor the load that others cause there.
    """
    found = {} if lint is None else {"lint": lint}
    return msgspec.json.encode(
        {
            "id": decision_id,
            "object": "cachefleet.decision",
            "model": info.model,
            "endpoint": info.endpoint,
            "verdict": decision.verdict,
            "reason": decision.reason,
            "policy": decision.policy,
            "knowledge": decision.knowledge,
            "rendered_by": rendering.rung,
            "render_failure": rendering.reason,
            "worker": decision.worker or None,
            "pool": decision.pool or None,
            "rank": decision.rank,
            "prompt_tokens": decision.prompt_tokens,
            "predicted_tokens": decision.forecast_tokens,
            "candidates": [_candidate(score, chosen=score.id == decision.id) for score in decision.scores],
        }
        | found
    )


def _candidate(score: CandidateScore, *, chosen: bool) -> dict[str, object]:
    record = CandidateRecord.of(score, chosen=chosen)
    return {name: getattr(record, name) for name in _SHOWN_TO_TENANTS}


class DecisionTrace(Struct):
    """Notes on one request, taken as it proceeds; turned into a record at its end."""

    id: str
    at: float
    model: str
    endpoint: str
    decision: Decision | None = None
    usage: Usage | None = None
    """What the engine has told at the answer's end."""
    cut_short: Usage | None = None
    """What is known of an answer that ended without: its prompt, the tokens produced; None where ``usage`` is there."""
    left_at: str = ""
    """URL of the worker that may say what was made of a whole answer whose client has left; "" for none."""
    most_tokens: int = 0
    """What its prompt or answer can have had at most, then."""
    passed_to: str = ""
    """The control plane that answers it in place of this one; "" for none."""
    ended_by: EndedBy | None = None
    """Who ended the answer before its worker had; None for nobody."""
    ttft_seconds: float | None = None
    queued_seconds: float | None = None
    """Seconds that it waited for room; None where it did not."""
    cold_seconds: float = 0.0
    """Seconds for which it was held since no worker was ready."""
    room_by: float = 0.0
    """Until when one that was held may wait for room, in monotonic seconds; 0 for any other."""
    status: int = CLIENT_GONE_STATUS
    attempts: list[AttemptRecord] = []
    first: Decision | None = None
    """The first decision that named a worker; ``decision`` may be a later attempt's."""
    continued: Decision | None = None
    """Of the worker whose answer others went on with: it looked up the prompt alone, they what it had produced, too."""
    prefill: DecisionTrace | None = None
    """Of the first Prefill worker that computed the prompt: its decision, what it counted, and the basis of both."""
    shortfall: ShortfallRecord | None = None
    lost: tuple[LostRecord, ...] = ()
    handle: HandleOutcome | None = None
    """What became of a handle for its conversation, in the worker that served it."""
    continuation: str | None = None
    request_id: str | None = None
    """The client's name for the request."""
    span: RequestSpan | None = None
    """None where it is not traced."""

    tenant: TenantId = _NOBODY
    isolation: Isolation | Literal[""] = ""
    """"" before the prompt is known, as what follows."""
    salt_version: int | None = None
    """None where blocks are shared."""
    rung: str = ""
    render_failure: str | None = None
    block_size: int = 0
    keys: bytes = b""
    """The prompt's packed block keys."""
    shape: PromptShape | None = None
    """The prompt's parts without their text; None where they are not known."""
    tells: Callable[[DecisionTrace, Decision], Header] | None = None
    """Makes the header that tells of the decision, of a request whose client asks for it; None of others."""
    single: bool = False
    """The engine's usage counts the one prompt that was routed by."""
    reads_cache: bool = True
    """The engine looks for the prompt in its cache."""

    @property
    def answered(self) -> Decision | None:
        """The decision for the worker whose cache the usage reports: of an answer by several workers the first."""
        return self.continued or self.decision

    @property
    def computed_tokens(self) -> int | None:
        """Tokens computed for it: of its prompt what no cache had, and its answers'; None where no worker has told."""
        usage = self.usage or self.cut_short
        if usage is None:
            return None
        cached = usage.cached_tokens
        if cached is None and self.answered is not None:
            cached = self.answered.forecast_tokens
        return max(0, usage.prompt_tokens - (cached or 0)) + (usage.completion_tokens or 0)

    def headers(self, decision: Decision | None) -> list[Header]:
        """Return the headers of an answer that tell of its decision, more of them where the client asks for that."""
        headers = decision_headers(self.id, decision)
        if self.tells is not None and decision is not None:
            headers.append(self.tells(self, decision))
        return headers

    def aside(self) -> DecisionTrace:
        """Return a trace of another decision on the same prompt, which gets no record of its own."""
        answers = {"decision": None, "usage": None, "first": None, "continued": None, "prefill": None}
        return replace(self, attempts=[], ttft_seconds=None, **answers)

    def attempt_headers(self, headers: list[Header], began: float, url: str) -> list[Header]:
        """Return the headers of an attempt that begins now, and is sent to ``url``."""
        return headers if self.span is None else self.span.leg(headers, began, url)

    def made(self, *, whole: bool = False) -> DecisionRecord:
        """Return the record of a request that was decided on, with its leading candidates, or with all (``whole``)."""
        decision = cast("Decision", self.answered)
        scores = decision.scores if whole else decision.leading
        return self._record(decision, self._candidates(decision, scores), left_out=decision.candidates - len(scores))

    def stored(self) -> DecisionRecord:
        """Return the same record to be written and not read: its candidates are JSON, made without their objects."""
        decision = cast("Decision", self.answered)
        leading = decision.leading
        if not isinstance(leading, LaterScores) or leading.encode is None:
            return self.made()
        encoded = cast("tuple[CandidateRecord, ...]", msgspec.Raw(leading.encode(self.block_size, decision.id)))
        return self._record(decision, encoded, left_out=decision.candidates - len(leading))

    def _candidates(self, decision: Decision, scores: Sequence[CandidateScore]) -> tuple[CandidateRecord, ...]:
        size, chosen = self.block_size, decision.id
        return tuple(CandidateRecord.of(score, block_size=size, chosen=score.id == chosen) for score in scores)

    def _record(self, decision: Decision, candidates: tuple[CandidateRecord, ...], *, left_out: int) -> DecisionRecord:
        usage = self.usage or self.cut_short
        return DecisionRecord(
            id=self.id,
            at=self.at,
            model=self.model,
            pool=decision.pool,
            endpoint=self.endpoint,
            policy=decision.policy,
            verdict=decision.verdict,
            reason=decision.reason,
            worker=decision.worker,
            knowledge=decision.knowledge,
            prompt_tokens=decision.prompt_tokens,
            predicted_tokens=decision.forecast_tokens,
            cached_tokens=None if usage is None else usage.cached_tokens,
            completion_tokens=None if usage is None else usage.completion_tokens,
            ttft_seconds=self.ttft_seconds,
            queued_seconds=(self.queued_seconds or 0.0) + self.cold_seconds
            if self.cold_seconds
            else self.queued_seconds,
            status=self.status,
            attempts=tuple(self.attempts),
            candidates=candidates,
            candidates_left_out=left_out,
            shortfall=self.shortfall,
            lost=self.lost,
            continuation=self.continuation,
            request_id=self.request_id,
            ended_by=self.ended_by,
            tenant=self.tenant,
            isolation=self.isolation,
            salt_version=self.salt_version,
            rung=self.rung,
            render_failure=self.render_failure,
        )
