"""Holding a request: the worker that is asked for its keys is sent the request itself, and answers it when told to."""

from __future__ import annotations

from cachefleet_controlplane.gateway.rendering.render_ladder import Try
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.gateway.upstream.worker_answer import AttemptResult
from cachefleet_controlplane.wire.headers import upstream_headers
from cachefleet_controlplane.workers.render_profiles import RenderFacts
from cachefleet_core.engine.held_requests import HOLD_HEADER, NOT_HELD, Hold


def hold_headers(request: Request, body: bytes, facts: RenderFacts, *, key: str, ids: bool) -> list[tuple[str, str]]:
    """Return the headers of a request that is to be held; ``body`` is what is sent of it, ``ids``: ids are wanted."""
    hold = Hold(
        length=len(body),
        contract=facts.contract,
        block_size=facts.block_size,
        lookahead=facts.lookahead,
        model=request.model.upstream,
        ids=ids,
    )
    return [*upstream_headers(request.headers, key=key), (HOLD_HEADER, hold.header())]


def may_be_held(attempt: Try, facts: RenderFacts) -> bool:
    """Whether to have the worker hold the request, instead of asking for its keys alone."""
    return attempt.by_plugin and attempt.worker.url in facts.held_at


def is_not_held(opened: AttemptResult) -> bool:
    """Whether a worker says that it holds requests no more."""
    answer = opened.answer
    return answer is not None and answer.status == 501 and NOT_HELD.encode() in answer.body
