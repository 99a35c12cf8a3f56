"""Chooses the worker of one request, again for each attempt, and waits for room."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from cachefleet_native import InFlightRequest
from msgspec.structs import replace

from cachefleet_controlplane.gateway.place.fair_shares import Claim
from cachefleet_controlplane.gateway.place.placement_decision import decide
from cachefleet_controlplane.gateway.place.refusals import refusal
from cachefleet_controlplane.gateway.place.request_queue import Busy, Left
from cachefleet_controlplane.gateway.place.tenant_activity import UNBOUNDED
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.gateway.retry.attempt_plan import AS_ASKED, AttemptMode
from cachefleet_controlplane.gateway.retry.gateway_context import GatewayContext
from cachefleet_controlplane.gateway.retry.retry_state_machine import Progress
from cachefleet_controlplane.gateway.retry.stalled_attempts import UnansweredAttempt
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.routing.decision import Decision, Reason, Verdict, held_back, turned_away
from cachefleet_controlplane.routing.prompt_blocks import expected_tokens, needed_blocks
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.pool.worker_spec import Role

_LEFT: Final = {Left.TIMEOUT: Reason.QUEUE_TIMEOUT, Left.DISPLACED: Reason.DISPLACED}


class WorkerChoice:
    """The choice of a worker for one request; its decisions go into ``trace``.

    ``chosen`` is the last decision that names a worker, ``inflight`` what is in flight there until ``free`` is called.
    """

    def __init__(
        self,
        context: GatewayContext,
        request: Request,
        trace: DecisionTrace,
        plan: Callable[[Decision, Progress], AttemptMode],
    ) -> None:
        """``plan`` returns how an attempt would be sent to the worker decided on."""
        self._fleet, self._queue, self._clock = context.fleet, context.queue, context.clock
        self.request = request
        """What is decided on; replaced to ask for the rest of an answer."""
        self._trace = trace
        self._plan = plan
        self._prefilled: Reason | None = None
        self.cached_only = False
        """The client wants it only where some of it is cached; applies to the first attempt."""
        self.more = 0
        """How many workers a decision is to name that are next in order."""
        tenant, bounded = request.tenant, request.model.bounds_ahead
        self._claim = Claim(request.line, tenant.priority, request.arrival.began, tenant.name, tenant.weight, bounded)
        self._charged = 0
        """Tokens that what is in flight is expected to compute."""
        self._worker = ""
        """Where it is in flight."""
        self._latest: Decision | None = None
        self.chosen: Decision | None = None
        self.inflight: InFlightRequest | None = None

    def choose(self, progress: Progress) -> Outcome:
        """Decide now: PLACED, PREFILL_FIRST, NO_ROOM (``wait`` comes next), REFUSED or NO_WORKER.

        Workers that ``progress`` avoids are chosen only where no other can be.
        """
        began = self._clock()
        decision = decide(self._fleet, self.request, exclude=progress.excluded | progress.avoided, more=self.more)
        if progress.avoided and decision.verdict is not Verdict.ROUTE:
            decision = decide(self._fleet, self.request, exclude=progress.excluded, more=self.more)
        if self._others_first():
            decision = held_back(decision)
        elif self._sent_ahead(decision):
            decision = turned_away(decision, Reason.SENT_AHEAD)
        outcome = self._take(decision, progress)
        if self._trace.span is not None:
            self._trace.span.phase("decide", began, self._clock(), **{"cachefleet.outcome": outcome})
        return outcome

    def _others_first(self) -> bool:
        return self._queue.others_first(self._claim)

    def waiting(self, chosen: Decision, excluded: frozenset[str] | None) -> UnansweredAttempt:
        """What is known of an attempt while it waits for the first byte of the worker chosen; ``excluded`` None: it is
        the last one.
        """
        stream = self.request.info.stream
        elsewhere = _nowhere if excluded is None else partial(self.elsewhere, chosen, excluded)
        return UnansweredAttempt(chosen.full_name, stream, chosen.seconds, elsewhere)

    def elsewhere(self, chosen: Decision, excluded: frozenset[str]) -> bool:
        """Whether another worker than the one chosen would take the request now."""
        if self._others_first():
            return False
        decision = decide(self._fleet, self.request, exclude=excluded | {chosen.full_name})
        return decision.verdict is Verdict.ROUTE and not self._sent_ahead(decision)

    def _sent_ahead(self, decision: Decision) -> bool:
        """Whether the worker has been sent as much ahead as its pool allows, or as much of the request's tenant."""
        if decision.verdict is not Verdict.ROUTE or not self._claim.bounded:
            return False
        for pool in self.request.model.declared:
            if pool.key == decision.pool:
                bounds = self._queue.bounds(self._claim, pool.spec.admission)
                if bounds is UNBOUNDED:
                    return False
                ahead = decision.queue_seconds > bounds.seconds and _computing(decision)
                return ahead or self._queue.underway(self._claim, decision.full_name) >= bounds.sequences
        return False

    def first_token(self) -> None:
        """Note that the prompt is computed: its worker may be sent another one."""
        if self.inflight is not None:
            self.inflight.first_token()
            self._queue.prefilled(self._claim.fleet)

    async def wait(self, progress: Progress) -> Outcome:
        """Wait for room, for as long as its pools allow in all; return as ``choose``, but never NO_ROOM."""
        waited = self._trace.queued_seconds or 0.0
        seconds = max(_wait_seconds(self.request.model) - waited, self._trace.room_by - self._clock())
        if self.request.wait_seconds is not None:
            seconds = min(seconds, self.request.wait_seconds - waited)
        if seconds <= 0:
            return self._refuse(Reason.QUEUE_TIMEOUT if waited else Reason.NO_ROOM)
        if self._queue.hopeless(self._claim, seconds=seconds):
            return self._refuse(Reason.WAIT_TOO_LONG)
        prompt = self.request.prompt
        blocks = needed_blocks(prompt)
        ticket = self._queue.enter(self._claim, blocks=blocks, tokens=expected_tokens(prompt, prompt.tokens))
        if ticket is None:
            return self._refuse(Reason.QUEUE_FULL)
        began = self._clock()
        try:
            with self._fleet.demands.of(self.request.fleet).queueing(blocks):
                found = await self._queue.wait(ticket, lambda: self._attempt(progress), seconds=seconds)
        finally:
            ended = self._clock()
            self._trace.queued_seconds = waited + ended - began
            if self._trace.span is not None:
                self._trace.span.phase("queue", began, ended)
        return self._refuse(_LEFT[found]) if isinstance(found, Left) else found

    def refusal(self) -> tuple[Reason, ApiError]:
        """Return why it is sent to no worker, and the client's error."""
        prompt = self.request.prompt
        # The last attempt's decision says nothing of why there is no other.
        decision = None if self._latest is self.chosen else self._latest
        reason = decision.reason if decision else Reason.NO_READY_WORKER
        info, who, model = self.request.info, self.request.roles, self.request.model.name
        refused = partial(refusal, info.model, prompt, decision, who=who, path=info.endpoint)
        if reason is not Reason.NO_READY_WORKER:
            return reason, refused(retry_after=self._queue.retry_after(self._claim.fleet, blocks=needed_blocks(prompt)))
        suspended = self._fleet.suspended(model, self.request.duty)
        return reason, refused(retry_after=self._fleet.ready_in(model), suspended=suspended)

    def free(self, cached_tokens: int | None = None, *, computed: int | None = 0) -> None:
        """End what is in flight, with so many tokens served from the worker's cache; may be called at any time.

        ``computed``: tokens that its tenant's share is charged with in the end: none where another attempt follows,
        None for what was expected.
        """
        inflight, self.inflight = self.inflight, None
        if inflight is not None:
            more = 0 if computed is None else computed - self._charged
            worker, sequences = self._worker, inflight.sequences
            self._queue.ended(self._claim, worker=worker, sequences=sequences, blocks=inflight.blocks, more=more)
            inflight.finish(cached_tokens=cached_tokens)

    def move(self, decision: Decision) -> None:
        """Count the request at another worker than the one chosen: that one has taken it."""
        self.free()
        self._chosen(decision, AS_ASKED)

    def _attempt(self, progress: Progress) -> Outcome | Busy | None:
        decision = decide(self._fleet, self.request, exclude=progress.excluded, more=self.more)
        if self._sent_ahead(decision):
            self._latest = turned_away(decision, Reason.SENT_AHEAD)
            return Busy.BUSY
        if decision.verdict is Verdict.QUEUE:
            self._latest = decision
            return None
        return self._take(decision, progress)

    def _refuse(self, reason: Reason) -> Outcome:
        if self._latest is None:
            raise RuntimeError("refused before anything was decided")
        return self._unplaced(replace(self._latest, verdict=Verdict.REJECT, reason=reason))

    def _take(self, decision: Decision, progress: Progress) -> Outcome:
        if decision.verdict is Verdict.ROUTE and self._unwanted(decision):
            decision = turned_away(decision, Reason.NOT_CACHED)
        if decision.verdict is not Verdict.ROUTE:
            return self._unplaced(decision)
        return self._chosen(decision, self._plan(decision, progress))

    def _unplaced(self, decision: Decision) -> Outcome:
        self._latest = decision
        if self.chosen is None:  # else the last attempt's decision explains more
            self._trace.decision = decision
        if decision.verdict is Verdict.QUEUE:
            return Outcome.NO_ROOM
        return Outcome.NO_WORKER if decision.reason is Reason.NO_READY_WORKER else Outcome.REFUSED

    def _unwanted(self, decision: Decision) -> bool:
        """Whether only a cached prompt is wanted, and neither reports nor requests just sent make it cached there."""
        cold = decision.uncached_tokens >= decision.prompt_tokens
        return self.cached_only and not self._trace.attempts and cold

    def _chosen(self, decision: Decision, kind: AttemptMode) -> Outcome:
        self._prefilled = kind.prefill or (self._prefilled if kind.transferred else None)
        counted = decision
        if self._prefilled is not None:
            decision = replace(decision, verdict=Verdict.PREFILL_FIRST, reason=self._prefilled)
        self._latest = self.chosen = self._trace.decision = decision
        self._trace.first = self._trace.first or decision
        if kind.prefill is not None:
            return Outcome.PREFILL_FIRST
        if kind.transferred:  # its blocks come from the Prefill worker
            counted = replace(counted, uncached_tokens=min(1, counted.uncached_tokens))
        self.inflight = self._fleet.begin(counted, self.request.prompt)
        self._charged = expected_tokens(self.request.prompt, counted.uncached_tokens)
        self._worker = decision.full_name
        sequences = self.inflight.sequences
        self._queue.began(self._claim, worker=self._worker, sequences=sequences, tokens=self._charged)
        self.request.sent_to(self._worker)
        return Outcome.PLACED


def _nowhere() -> bool:
    return False


def _computing(decision: Decision) -> bool:
    """Whether the worker chosen was sent prompts that it has yet to compute: else what it told is over since."""
    return any(chosen.inflight_tokens for chosen in decision.leading[:1])


def _wait_seconds(model: ServedModel) -> float:
    """The longest wait in seconds that any pool allows whose workers answer requests."""
    answering = [pool for pool in model.declared if pool.spec.role is not Role.PREFILL]
    return max(pool.spec.admission.max_queue_seconds for pool in answering or model.declared)
