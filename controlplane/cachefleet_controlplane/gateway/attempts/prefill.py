"""A prefill attempt: a Prefill worker computes a prompt, and tells where the answering worker finds its blocks.

For the Prefill worker it is a request for one token. The choice of a worker, the wait for room and failures follow the
table of ``state_machine``, with a count of attempts of their own. Its answer's ``kv_transfer_params`` are sent with the
final attempt, unread. A connector that needs none, such as those with a shared store, gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.request_info import FIELD
from cachefleet_controlplane.gateway.attempts.gateway_context import GatewayContext
from cachefleet_controlplane.gateway.attempts.resume_eligibility import unmarked
from cachefleet_controlplane.gateway.attempts.retry_state_machine import Action, Progress, State, step
from cachefleet_controlplane.gateway.attempts.worker_choice import WorkerChoice
from cachefleet_controlplane.gateway.engine_deaths.exposed_request import ExposedRequest
from cachefleet_controlplane.gateway.placement.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.placement.routing_input import RoutingInput
from cachefleet_controlplane.gateway.upstream.answers.usage import Usage
from cachefleet_controlplane.gateway.upstream.outcome import BLAMES, BREAKS, Outcome
from cachefleet_controlplane.gateway.upstream.worker_answer import AttemptResult
from cachefleet_controlplane.routing.decision import Reason
from cachefleet_controlplane.selection.eligibility import Duty
from cachefleet_controlplane.store.decision_records import AttemptRecord
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import Header, upstream_headers
from cachefleet_controlplane.wire.json_members import FALSE, READ_ERRORS, ZERO, Fields, edited

KIND: Final = "prefill"
_ONE: Final = Raw(b"1")
_PARAMS: Final = "kv_transfer_params"
_ASKED: Final = Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}'
)
"""What a NIXL-like connector is sent on the Prefill side."""
_CHANGES: Final[dict[str, Raw | None]] = {
    "max_tokens": _ONE,
    "max_completion_tokens": _ONE,
    "min_tokens": None,
    "n": _ONE,
    "stream": FALSE,
    "stream_options": None,
    "return_token_ids": None,
    FIELD: ZERO,
    _PARAMS: _ASKED,
}
_GOING: Final = frozenset({Action.CHOOSE, Action.QUEUE, Action.SEND})

_fields = msgspec.json.Decoder(Fields)


def prefill_body(body: bytes) -> tuple[bytes, int]:
    """Return a Prefill worker's body for a body of ours, and its number of members."""
    return edited(unmarked(body), _CHANGES)


def transfer_params(body: bytes) -> Raw | None:
    """Return a Prefill answer's ``kv_transfer_params`` as raw JSON; None without any."""
    try:
        params = _fields.decode(body).get(_PARAMS)
    except READ_ERRORS:
        return None
    return None if params is None or bytes(params) == b"null" else Raw(bytes(params))


class Transfer:
    """One prefill attempt for ``routing_input``, sent to ``path``; ``run`` makes it, then the results are set.

    ``usage`` reads a worker's counts in the body of its answer.
    """

    def __init__(
        self,
        context: GatewayContext,
        routing_input: RoutingInput,
        exposed: ExposedRequest,
        *,
        path: str,
        trace: DecisionTrace,
        arrived: float,
        usage: Callable[[bytes], Usage | None],
    ) -> None:
        self._context = context
        self._exposed = exposed
        self._path = path
        self._usage = usage
        self._trace = trace
        body, self.members = prefill_body(routing_input.body)
        self._routing_input = replace(
            routing_input,
            duty=Duty.PREFILL,
            body=body,
            prompt=replace(routing_input.prompt, max_tokens=1, choices=1),
            preferred="",
            sent_to=lambda _: None,
        )
        # The record has the decisions on who answers, and the sum of all waits.
        self._aside = DecisionTrace(
            *(trace.id, trace.at, trace.model, trace.endpoint), queued_seconds=trace.queued_seconds, span=trace.span
        )
        self._placement = WorkerChoice(
            context.fleet, context.queue, self._routing_input, trace=self._aside, arrived=arrived, clock=context.clock
        )
        self._progress = Progress()
        self._began = 0.0
        self.opened = AttemptResult(Outcome.LOST)
        """The last Prefill worker's answer."""

    @property
    def params(self) -> Raw | None:
        """``kv_transfer_params`` for the final attempt; None without any."""
        return transfer_params(self.opened.answer.body) if self.opened.answer else None

    async def run(self, headers: Sequence[Header]) -> Outcome:
        """Return PREFILLED, PREFILL_FAILED (``opened`` has the answer), PREFILL_LOST or NO_PREFILL (``refusal``)."""
        action = Action.CHOOSE
        try:
            while action in _GOING:
                outcome = await self._act(action, headers)
                action = self._step(await self._died(outcome) if outcome in BREAKS else outcome)
            found = self._found(action)
            if found is Outcome.PREFILLED and self.opened.answer is not None:
                self._account(self.opened.answer.body)
            self._context.metrics.prefill_attempt(found)
            return found
        finally:
            if self._progress.state is State.WAITING:
                self._note(self._context.cancelled)
            self._placement.free()
            self._trace.queued_seconds = self._aside.queued_seconds

    def refusal(self) -> tuple[Reason, ApiError]:
        """Return why no Prefill worker could be asked, and the client's error."""
        reason, error = self._placement.refusal()
        return (Reason.NO_PREFILL_WORKER if reason is Reason.NO_READY_WORKER else reason), error

    async def _act(self, action: Action, headers: Sequence[Header]) -> Outcome:
        if action is Action.CHOOSE:
            may = await self._exposed.may_go()
            return self._placement.choose(self._progress) if may else Outcome.FATAL
        return await (self._placement.wait(self._progress) if action is Action.QUEUE else self._send(headers))

    async def _died(self, outcome: Outcome) -> Outcome:
        """DIED where the Prefill worker's engine has ended, which is noted."""
        chosen = self._placement.chosen
        died = chosen is not None and await self._exposed.lost(chosen, began=self._began, produced=False)
        return Outcome.DIED if died else outcome

    async def _send(self, headers: Sequence[Header]) -> Outcome:
        chosen = self._placement.chosen
        if chosen is None:
            raise RuntimeError("a prefill attempt without a worker")
        self._began = self._context.clock()
        told = self._trace.leg(list(headers), self._began, chosen.url)
        given = upstream_headers(told, key=self._context.credentials.of(chosen.url))
        self.opened = AttemptResult(Outcome.LOST)
        work = self._context.upstream.open(chosen.url, self._path, self._routing_input.body, headers=given)
        last = self._progress.attempts >= self._context.max_attempts
        waiting = self._placement.waiting(chosen, None if last else self._progress.excluded)
        self.opened = await self._context.stalled.bounded(waiting, work)
        if self.opened.stream is not None:  # nobody asked for one
            self.opened.stream.close()
            return Outcome.OVERSIZED
        answer = self.opened.answer
        if answer is not None and answer.status == 200 and self._placement.inflight is not None:
            self._placement.inflight.first_token()
        return self.opened.outcome

    def _step(self, outcome: Outcome) -> Action:
        before, chosen = self._progress, self._placement.chosen
        worker = chosen.full_name if chosen else ""
        self._progress, action = step(before, outcome, worker=worker, max_attempts=self._context.max_attempts)
        if before.state is State.WAITING and chosen is not None:
            self._note(outcome)
            if outcome in BLAMES:
                self._placement.free()
                excluded = worker in self._progress.excluded
                self._context.blame(chosen, outcome, excluded=excluded, retried=action is Action.CHOOSE)
        return action

    def _found(self, action: Action) -> Outcome:
        answer = self.opened.answer
        if action is Action.DELIVER and answer is not None:
            return Outcome.PREFILLED if answer.status == 200 else Outcome.PREFILL_FAILED
        return Outcome.NO_PREFILL if action is Action.REFUSE and not self._progress.attempts else Outcome.PREFILL_LOST

    def _account(self, body: bytes) -> None:
        """Keep what the worker counted: of what it brings over, the answering worker's usage says no more."""
        self._aside.basis, self._aside.usage = self._trace.basis, self._usage(body)
        self._trace.prefill = self._trace.prefill or self._aside

    def _note(self, outcome: str) -> None:
        if self._placement.chosen is not None:
            status = self.opened.answer.status if self.opened.answer else None
            seconds = self._context.clock() - self._began
            self._trace.attempts.append(AttemptRecord(self._placement.chosen.worker, outcome, status, seconds, KIND))
