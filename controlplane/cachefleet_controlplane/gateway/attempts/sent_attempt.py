"""Sends one attempt to its worker: as word to go on where it holds the request, by handle, or whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachefleet_controlplane.gateway.attempts.attempt_plan import Attempt
from cachefleet_controlplane.gateway.placement.routing_input import RoutingInput
from cachefleet_controlplane.gateway.rendering.outgoing import HeldRequest
from cachefleet_controlplane.gateway.upstream.client import Upstream
from cachefleet_controlplane.gateway.upstream.outcome import Outcome
from cachefleet_controlplane.gateway.upstream.worker_answer import AttemptResult
from cachefleet_controlplane.wire.json_members import encode


async def send_attempt(
    upstream: Upstream,
    routing_input: RoutingInput,
    attempt: Attempt,
    url: str,
    headers: Sequence[tuple[str, str]],
    *,
    resumed: bool,
    beside: Any = None,
) -> AttemptResult:
    """Send an attempt of a request; the rest of an answer (``resumed``) is always sent whole.

    ``beside``: the native request of the client that the answer is for.
    """
    continuing, held = None if resumed else routing_input.continuing, routing_input.rendering.held
    if held is not None and (opened := await _answered(upstream, held, attempt, url)) is not None:
        return opened if continuing is None else continuing.answered(url, opened)
    if continuing is None:
        return await upstream.open(
            url, attempt.path, attempt.whole(), headers=headers, watch=attempt.watch, beside=beside
        )
    told = [*headers, *continuing.headers(url)]

    async def send(body: bytes) -> AttemptResult:
        return await upstream.open(url, attempt.path, body, headers=told, watch=attempt.watch, beside=beside)

    return await continuing.send(url, attempt.whole(), send)


async def _answered(upstream: Upstream, held: HeldRequest, attempt: Attempt, url: str) -> AttemptResult | None:
    """Have the worker answer that holds the request; None where it does no more: then it is sent again."""
    if not held.answer.take():
        return None
    if not held.serves(url, attempt.path, attempt.body, changed=bool(attempt.changes)):
        held.answer.close()
        return None
    members = encode(attempt.changes) if attempt.changes else b""
    opened = await upstream.go(held.answer, url=url, members=members, watch=attempt.watch)
    return None if opened.outcome is Outcome.LOST else opened
