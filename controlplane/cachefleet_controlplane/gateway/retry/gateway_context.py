"""What the exchanges of all requests share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cachefleet_native import KeptBytes

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.answers_under_way import AnswersUnderWay
from cachefleet_controlplane.gateway.engine_deaths.engine_deaths import EngineDeaths, Subject
from cachefleet_controlplane.gateway.engine_deaths.exposed_request import ExposedRequest
from cachefleet_controlplane.gateway.place.key_affinity import KeyAffinity
from cachefleet_controlplane.gateway.place.request_queue import Queue
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.gateway.retry.stalled_attempts import StalledAttempts
from cachefleet_controlplane.gateway.retry.stream_replay import MAX_KEPT_BYTES
from cachefleet_controlplane.gateway.send.answers.system_fingerprints import Fingerprints
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.routing.decision import Decision
from cachefleet_controlplane.tracing.tracer import Tracer


@dataclass(frozen=True, slots=True)
class GatewayContext:
    """Dependencies of exchanges; ``max_attempts`` is for one request; ``clock`` is monotonic, in seconds.

    ``fallbacks`` are the workers after the chosen one that Envoy is told.
    """

    fleet: Fleet
    upstream: Upstream
    credentials: Credentials
    metrics: Metrics
    fingerprints: Fingerprints
    queue: Queue
    stalled: StalledAttempts
    deaths: EngineDeaths
    under_way: AnswersUnderWay
    affinity: KeyAffinity
    max_attempts: int
    fallbacks: int
    kept: KeptBytes = field(default_factory=lambda: KeptBytes(MAX_KEPT_BYTES))
    """Of bodies and records of recorded streams."""
    tracer: Tracer | None = None
    """None where traces are off."""
    clock: Callable[[], float] = time.monotonic

    def exposed(self, request: Request) -> ExposedRequest:
        """Begin to watch what engines that end have to do with a request."""
        arrival = request.arrival
        subject = Subject(request.model.name, request.tenant.name, arrival.trace.id)
        return ExposedRequest(self.deaths, request.info.endpoint, request.body, subject, arrived=arrival.began)

    @property
    def cancelled(self) -> Outcome:
        """Outcome of an attempt that is cancelled now: the client has left, or the replica stops."""
        return Outcome.RESTARTED if self.under_way.stopped else Outcome.CANCELLED

    def blame(self, chosen: Decision, outcome: Outcome, *, excluded: bool, retried: bool) -> None:
        """Note a worker's failed attempt; ``excluded``: it is not asked again, ``retried``: another one is."""
        self.fingerprints.forget(chosen.url)
        if retried:
            self.metrics.attempt_retry(outcome)
        if outcome is Outcome.KEY_REFUSED:
            self.fleet.key_refused(chosen.full_name)
            return
        # A 5xx may be the request's fault, and one lost connection no more than a closed idle one.
        if outcome is not Outcome.SERVER_ERROR and (excluded or not retried):
            self.fleet.worker_failed(chosen.full_name)
