"""The access log: a line for each request, where a setting asks for it. Nothing of a prompt or an answer but counts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from cachefleet_controlplane.gateway.admit.tenant_admission import ADMITTED
from cachefleet_controlplane.gateway.health import OPEN_PATHS
from cachefleet_controlplane.gateway.request.decision_trace import TRACE, DecisionTrace
from cachefleet_controlplane.wire.errors import MAX_SHOWN
from cachefleet_controlplane.wire.headers import NAMES
from cachefleet_controlplane.wire.http_exchange import CLIENT_GONE_STATUS, Reply, Scope

LOGGER: Final = "cachefleet.access"

ALWAYS: Final = ("method", "path", "status", "seconds")
"""Fields of every line; the path of a CONNECT, or of a target that is none, is empty."""

Fields = dict[str, object]


class AccessLog:
    """Writes the lines; ``clock`` is monotonic, in seconds. Health checks have none."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logger = logging.getLogger(LOGGER)

    def began(self) -> float:
        """When a request comes."""
        return self._clock()

    def ended(self, scope: Scope, reply: Reply, began: float) -> None:
        """Write the line of a request that has ended, whatever became of it."""
        if scope["path"] in OPEN_PATHS:
            return
        fields = access_fields(scope, reply, self._clock() - began)
        words = "%(method)s %(path)s %(status)d %(seconds).3f s"
        self._logger.info(words, fields, extra=fields)


def access_fields(scope: Scope, reply: Reply, seconds: float) -> Fields:
    """What the line of a request tells, without what is not known of it; neither its query nor its headers."""
    trace: DecisionTrace | None = scope.get(TRACE)
    admitted = scope.get(ADMITTED)
    status = reply.status if reply.started else CLIENT_GONE_STATUS
    found: Fields = {
        "method": scope["method"],
        "path": _printable(scope["path"][:MAX_SHOWN]),
        "status": status,
        "seconds": round(seconds, 6),
        "request": dict(scope[NAMES])[b"x-request-id"].decode(),
        "tenant": admitted.tenant.name if admitted is not None else None,
    }
    if trace is not None:
        found |= _of_decision(trace)
    return {name: value for name, value in found.items() if name in ALWAYS or value not in (None, "")}


def _printable(path: str) -> str:
    """Without line ends and the like, which a client may have put in."""
    return path if path.isprintable() else path.encode("unicode_escape").decode()


def _of_decision(trace: DecisionTrace) -> Fields:
    usage, decision = trace.usage or trace.cut_short, trace.answered
    return {
        "decision": trace.id,
        "model": trace.model,
        "worker": decision.full_name if decision is not None and decision.worker else None,
        "attempts": len(trace.attempts),
        "first_token_seconds": trace.ttft_seconds,
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "completion_tokens": usage.completion_tokens if usage else None,
        "ended_by": trace.ended_by,
    }
