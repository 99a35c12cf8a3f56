"""A traced request's notes as spans, by OpenTelemetry's conventions for HTTP and generative AI. Pure.

Nothing of a prompt or an answer but counts of tokens; no header of the client's; of models the names that are served.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.store.decision_records import AttemptRecord
from cachefleet_controlplane.tracing.request_span import AttemptSpan, RequestSpan
from cachefleet_controlplane.tracing.span import Attributes, Kind, Span, SpanEvent

PROVIDER: Final = "vllm"
_OPERATIONS: Final = {
    Endpoint.CHAT: "chat",
    Endpoint.RESPONSES: "chat",
    Endpoint.MESSAGES: "chat",
    Endpoint.COMPLETIONS: "text_completion",
    Endpoint.EMBEDDINGS: "embeddings",
    Endpoint.RERANK: "rerank",
    Endpoint.SCORE: "score",
    Endpoint.CLASSIFY: "classify",
    Endpoint.POOLING: "pooling",
    Endpoint.COUNT_TOKENS: "count_tokens",
    Endpoint.TOKENIZE: "tokenize",
    Endpoint.DETOKENIZE: "detokenize",
    Endpoint.TRANSCRIPTIONS: "transcription",
    Endpoint.TRANSLATIONS: "translation",
}
_FINE: Final = frozenset(
    {
        *(Outcome.ANSWERED, Outcome.FINISHED, Outcome.STOPPED, Outcome.HANDED_BACK, Outcome.MOVED),
        *(Outcome.GATE_REFUSED, Outcome.CANCELLED),
    }
)
"""Outcomes of attempts that are no fault."""
_BAD_REQUEST: Final = 400
_SERVER_ERROR: Final = 500


def request_spans(trace: DecisionTrace, span: RequestSpan, *, ended: float) -> list[Span]:
    """Return the spans of a request that ended at ``ended``, its own first."""
    return [_own(trace, span, ended), *_phases(span), *_attempts(trace, span)]


def failed(trace: DecisionTrace) -> bool:
    """Whether the client got an error of the service, or an answer that broke."""
    return trace.status >= _SERVER_ERROR or (_broken(trace) and trace.status < _BAD_REQUEST)


def _broken(trace: DecisionTrace) -> bool:
    return bool(trace.attempts) and trace.attempts[-1].outcome not in _FINE


def _own(trace: DecisionTrace, span: RequestSpan, ended: float) -> Span:
    operation = _OPERATIONS[Endpoint(trace.endpoint)]
    first = [] if trace.ttft_seconds is None else [SpanEvent("first_token", trace.at + trace.ttft_seconds)]
    bad = failed(trace)
    error = {"error.type": str(trace.attempts[-1].outcome) if _broken(trace) else str(trace.status)} if bad else {}
    host, port = span.server or ("", 0)
    return Span(
        name=f"{operation} {trace.model}".rstrip(),
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_id,
        began=span.arrived + span.unix_offset,
        ended=ended + span.unix_offset,
        kind=Kind.SERVER,
        attributes={
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "http.request.method": "POST",
            "http.route": trace.endpoint,
            "http.response.status_code": trace.status,
            **_address(host, port),
            **_usage(trace),
            **_decided(trace),
            **error,
        },
        events=first,
        failed=bad,
    )


def _usage(trace: DecisionTrace) -> Attributes:
    told: dict[str, str | float | None] = {
        "gen_ai.request.model": trace.model or None,
        "gen_ai.response.time_to_first_chunk": trace.ttft_seconds,
    }
    if (usage := trace.usage) is not None:
        told |= {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        }
    return {name: value for name, value in told.items() if value is not None}


def _decided(trace: DecisionTrace) -> Attributes:
    decision, usage = trace.decision, trace.usage
    told: dict[str, str | int | None] = {
        "cachefleet.decision.id": trace.id,
        "cachefleet.tenant": trace.tenant or None,
        "cachefleet.rendered_by": trace.rung or None,
        "cachefleet.continuation": trace.continuation,
        "cachefleet.shortfall.cause": trace.shortfall.cause if trace.shortfall else None,
    }
    if decision is not None:
        told |= {
            "cachefleet.pool": decision.pool or None,
            "cachefleet.worker": decision.worker or None,
            "cachefleet.verdict": decision.verdict,
            "cachefleet.reason": decision.reason,
            "cachefleet.policy": decision.policy,
            "cachefleet.knowledge": decision.knowledge,
            "cachefleet.tokens.predicted": decision.forecast_tokens,
        }
    if usage is not None and usage.cached_tokens is not None:
        told |= {
            "cachefleet.tokens.cached": usage.cached_tokens,
            "cachefleet.tokens.lost": usage.prompt_tokens - usage.cached_tokens,
        }
    return {name: value for name, value in told.items() if value is not None}


def _phases(span: RequestSpan) -> Iterator[Span]:
    for phase in span.phases:
        yield Span(
            name=phase.name,
            trace_id=span.trace_id,
            span_id=span.new_id(),
            parent_id=span.span_id,
            began=phase.began + span.unix_offset,
            ended=phase.ended + span.unix_offset,
            attributes=phase.attributes,
        )


def _attempts(trace: DecisionTrace, span: RequestSpan) -> Iterator[Span]:
    """Each attempt that began has a record when the request has ended, in the same order."""
    for number, (leg, record) in enumerate(zip(span.legs, trace.attempts, strict=False)):
        failed = record.outcome not in _FINE or (record.status or 0) >= _BAD_REQUEST
        began = leg.began + span.unix_offset
        yield Span(
            name="attempt" if record.kind == "answer" else record.kind,
            trace_id=span.trace_id,
            span_id=leg.span_id,
            parent_id=span.span_id,
            began=began,
            ended=began + (record.seconds or 0.0),
            kind=Kind.CLIENT,
            attributes=_sent(number, leg, record, failed=failed),
            failed=failed,
        )


def _sent(number: int, leg: AttemptSpan, record: AttemptRecord, *, failed: bool) -> Attributes:
    parts = urlsplit(leg.url)
    told: dict[str, str | int | None] = {
        "http.request.method": "POST",
        "http.response.status_code": record.status,
        "cachefleet.worker": record.worker,
        "cachefleet.outcome": str(record.outcome),
        "error.type": str(record.outcome) if failed else None,
        "http.request.resend_count": number or None,
        **_address(parts.hostname or "", parts.port or 0),
    }
    return {name: value for name, value in told.items() if value is not None}


def _address(host: str, port: int) -> dict[str, str | int]:
    """Where something listens; nothing where that is not known."""
    return {"server.address": host, "server.port": port} if host and port else {}
