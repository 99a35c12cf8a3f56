"""One request from its body to its last byte: carries out the table of ``state_machine``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, TypeVar

import cachefleet_native
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.api import Api, StreamTransformer
from cachefleet_controlplane.gateway.apis.endpoint_apis import api_of
from cachefleet_controlplane.gateway.apis.request_info import APPLIED, GENERATING, wants_cached
from cachefleet_controlplane.gateway.attempts.attempt_failures import failure
from cachefleet_controlplane.gateway.attempts.attempt_plan import AttemptPlanner
from cachefleet_controlplane.gateway.attempts.detokenizer import detokenizer
from cachefleet_controlplane.gateway.attempts.gateway_context import GatewayContext
from cachefleet_controlplane.gateway.attempts.prefill import Transfer
from cachefleet_controlplane.gateway.attempts.resume import Resumption
from cachefleet_controlplane.gateway.attempts.retry_state_machine import Action, State, begun, step
from cachefleet_controlplane.gateway.attempts.sent_attempt import send_attempt
from cachefleet_controlplane.gateway.attempts.stream_relay import StreamRelay
from cachefleet_controlplane.gateway.attempts.worker_choice import WorkerChoice, predicted_seconds
from cachefleet_controlplane.gateway.conversations.turn import Turn
from cachefleet_controlplane.gateway.placement.decision_trace import DecisionTrace, decision_headers
from cachefleet_controlplane.gateway.placement.routing_input import RoutingInput
from cachefleet_controlplane.gateway.upstream.answers.produced_tokens import aborts
from cachefleet_controlplane.gateway.upstream.answers.usage import LONGEST, Usage, within
from cachefleet_controlplane.gateway.upstream.answers.zero_cached_tokens import omitting
from cachefleet_controlplane.gateway.upstream.outcome import BLAMES, BREAKS, Outcome
from cachefleet_controlplane.gateway.upstream.worker_answer import AttemptResult
from cachefleet_controlplane.routing.decision import Decision, Reason, Verdict, turned_away
from cachefleet_controlplane.store.decision_records import AttemptRecord
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import Header, upstream_headers
from cachefleet_controlplane.wire.http_exchange import Reply

T = TypeVar("T")

_SENT = frozenset({State.WAITING, State.RELAYING})
"""An attempt is under way."""
_PRODUCING_SECONDS: Final = 2.0
"""A whole answer that takes longer than its prompt was predicted to, and this, counts as begun."""
_CUT = frozenset({Outcome.CANCELLED, Outcome.STOPPED, Outcome.RESTARTED})
"""The worker was at work when the client left, or the gateway ended the request."""


class Exchange:
    """Answers one request; ``run`` answers whatever happens, except when it is cancelled."""

    def __init__(
        self,
        context: GatewayContext,
        routing_input: RoutingInput,
        *,
        reply: Reply,
        trace: DecisionTrace,
        began: float,
        turn: Turn,
    ) -> None:
        self._context = context
        self._turn = turn
        self._routing_input = routing_input
        self._reply = reply
        self._trace = trace
        self._began = began
        self._progress = begun()
        self._resuming = Resumption.of(context.fleet, routing_input)
        self._planner = AttemptPlanner(self._resuming, max_attempts=context.max_attempts)
        self._exposed = context.exposed(routing_input, trace, arrived=began)
        self._transfer: Transfer | None = None
        self._placement = WorkerChoice(
            context.fleet,
            context.queue,
            self._resuming.routing_input,
            trace=trace,
            arrived=began,
            clock=context.clock,
            plan=self._planner.plan,
        )
        self._attempt_began = 0.0
        self._opened = AttemptResult(Outcome.LOST)
        self._outcome = Outcome.LOST
        """The last outcome, of any action."""
        self._api: Api = api_of(routing_input.info.endpoint)
        self._transformer: StreamTransformer | None = None

    async def run(self, headers: Iterable[Header]) -> None:
        """Answer the client; ``headers`` are the client's. To be called once."""
        given = list(headers)
        self._placement.cached_only = self._routing_input.info.endpoint in GENERATING and wants_cached(given)
        action = Action.CHOOSE
        try:
            while (outcome := await self._act(action, given)) is not None:
                action = self._step(await self._died(outcome) if outcome in BREAKS else outcome)
        finally:
            self._close()

    async def _act(self, action: Action, given: list[Header]) -> Outcome | None:
        """Carry out an action of the table; None once the answer is sent."""
        match action:
            case Action.CHOOSE:
                return await self._choose()
            case Action.QUEUE:
                return await self._placement.wait(self._progress)
            case Action.SEND | Action.PREFILL:
                return await (self._send(given) if action is Action.SEND else self._prefill(given))
            case Action.RELAY | Action.RESUME:
                return await (self._relay() if action is Action.RELAY else self._resume())
            case _:
                await self._conclude(action)
                return None

    async def _choose(self) -> Outcome:
        if await self._exposed.may_go():
            return self._placement.choose(self._progress)
        self._context.metrics.fatal_request(self._exposed.refusal)
        if self._trace.decision is None:
            self._trace.decision = turned_away(self._routing_input.decide(), Reason.FATAL_REQUEST)
        return Outcome.FATAL

    async def _died(self, outcome: Outcome) -> Outcome:
        """Note an attempt that was broken off, if the engine has ended; DIED then, unless the client has bytes."""
        state, chosen = self._progress.state, self._placement.chosen
        if state not in _SENT or chosen is None:
            return outcome
        patience = predicted_seconds(chosen) + _PRODUCING_SECONDS
        late = not self._routing_input.info.stream and self._context.clock() - self._attempt_began > patience
        died = await self._exposed.lost(chosen, began=self._attempt_began, produced=late)
        return Outcome.DIED if died and state is State.WAITING else outcome

    async def _conclude(self, action: Action) -> None:
        error = self._exposed.error()
        if error is not None and action is not Action.CLOSE:
            await (self._broken(error) if self._reply.started else self._fail(error))
            return
        match action:
            case Action.DELIVER:
                await self._deliver()
            case Action.REFUSE:
                await self._refuse()
            case Action.FAIL:
                await self._fail(failure(self._outcome, self._opened))
            case Action.BREAK:
                await self._broken(ApiError(502, "The worker's answer broke off."))
            case _:
                await self._reply.end()

    def _step(self, outcome: Outcome) -> Action:
        before, self._outcome = self._progress, outcome
        chosen = self._placement.chosen
        worker = chosen.full_name if chosen else ""
        self._progress, action = step(before, outcome, worker=worker, max_attempts=self._context.max_attempts)
        if before.state in _SENT and outcome is not Outcome.FIRST_EVENT:
            self._note_attempt(outcome)
        if outcome in BLAMES and (before.state is State.WAITING or action is Action.RESUME):
            self._blame(outcome, retried=action in {Action.CHOOSE, Action.RESUME})
        return action

    def _blame(self, outcome: Outcome, *, retried: bool) -> None:
        chosen = _there(self._placement.chosen)
        self._placement.free()
        self._context.blame(chosen, outcome, excluded=chosen.full_name in self._progress.excluded, retried=retried)

    async def _send(self, given: list[Header]) -> Outcome:
        chosen = _there(self._placement.chosen)
        now = self._attempt_began = self._context.clock()
        if not self._trace.attempts:
            others = self._routing_input.render_seconds + (self._trace.queued_seconds or 0.0)
            self._context.metrics.gateway_added(max(0.0, now - self._began - others))
        attempt = self._planner.next(self._progress)
        key = self._context.credentials.of(chosen.url)
        given = self._trace.leg(given, now, chosen.url)
        headers = upstream_headers(given, key=key, hooked=attempt.hooked)
        self._opened = AttemptResult(Outcome.LOST)  # in case the attempt is cancelled
        work = send_attempt(
            *(self._context.upstream, self._routing_input, attempt, chosen.url, headers),
            resumed=self._resuming.resumed,
            beside=self._reply.native,
        )
        last = self._progress.attempts >= self._context.max_attempts
        waiting = self._placement.waiting(chosen, None if last else self._progress.excluded)
        self._opened = await self._context.stalled.bounded(waiting, work)
        outcome, refusal = self._planner.outcome(self._opened)
        if refusal is not None:
            self._placement.free()
            self._planner.refuted(chosen, refusal, self._context.fleet)
            self._context.metrics.gate_refusal()
            return outcome
        if _prefilled(self._opened) and self._placement.inflight is not None:
            self._placement.inflight.first_token()
            self._context.fleet.refuted_blocks.settle(chosen.id, self._resuming.routing_input.prompt.keys)
        answer = self._opened.answer
        handed_back = self._resuming.takes_back(answer)
        if not handed_back and answer is not None and answer.status == 200 and aborts(answer.body):
            return Outcome.ABORTED
        if outcome is Outcome.ANSWERED or (outcome is Outcome.FIRST_EVENT and self._resuming.resumed):
            self._exposed.ended()
        return Outcome.HANDED_BACK if handed_back else outcome

    async def _prefill(self, given: list[Header]) -> Outcome:
        """Have a Prefill worker compute the prompt of the next attempt."""
        routing_input, path = self._resuming.routing_input, self._resuming.path
        usage = partial(_usage_in, self._api, routing_input)
        self._transfer = transfer = Transfer(
            *(self._context, routing_input, self._exposed),
            path=path,
            trace=self._trace,
            arrived=self._began,
            usage=usage,
        )
        outcome = await transfer.run(given)
        if outcome is Outcome.PREFILLED:
            self._planner.transfer = transfer.params
        else:
            self._opened = transfer.opened
        return outcome

    async def _relay(self) -> Outcome:
        """Send the events held back, then those that follow, each once the client has taken the one before."""
        stream, chosen = _there(self._opened.stream), _there(self._placement.chosen)
        if self._transformer is None:
            self._trace.ttft_seconds = self._context.clock() - self._began
            self._transformer = self._api.transformer(
                self._routing_input.info, self._context.fingerprints.of(chosen.url)
            )
            self._transformer.omit_zeros(omit=self._omits_zeros)
            self._reply.numbered(self._transformer)
            await self._reply.start(stream.status, [*stream.headers, *self._told(stream.status)])
            self._forget()
        transformer = self._transformer
        try:
            relay = StreamRelay(self._reply, self._turn, self._resuming, self._context.stalled)
            elsewhere = partial(self._placement.elsewhere, chosen, self._progress.excluded)
            outcome = await relay.run(stream, transformer, worker=chosen.full_name, elsewhere=elsewhere)
            if outcome is Outcome.FINISHED:
                if self._resuming.failed:
                    await self._died(outcome)
                else:
                    self._exposed.ended()
            return outcome
        finally:  # also where the client has disconnected
            self._trace.usage = _possible(transformer.usage, self._routing_input)
            self._context.fingerprints.learn(chosen.url, transformer.fingerprint)

    def _forget(self) -> None:
        """Once a stream is open keep no copy of the prompt: thousands may be, for long."""
        self._transfer = None
        self._exposed.begun()
        self._planner.begun()
        self._resuming.begun()
        self._placement.routing_input = self._routing_input = self._resuming.routing_input
        self._turn.begun(self._routing_input.info)

    async def _resume(self) -> Outcome:
        """Learn what to ask the next worker for."""
        if self._opened.stream is not None:
            self._opened.stream.close()
        self._placement.free()
        self._trace.continued = self._trace.answered
        self._context.metrics.attempt_retry(self._trace.attempts[-1].outcome)
        context = self._context
        text = detokenizer(context.fleet, context.upstream, context.credentials, model=self._routing_input.model)
        if not await self._resuming.go_on(text):
            return Outcome.STRANDED
        self._placement.routing_input = self._resuming.routing_input
        return Outcome.RESUMABLE

    async def _deliver(self) -> None:
        answer = _there(self._opened.answer)
        answer = await self._turn.answered(self._resuming.joined(answer))
        of_transfer = self._transfer is not None and self._outcome is Outcome.PREFILL_FAILED
        sent = self._transfer.members if self._transfer and of_transfer else self._planner.attempt.members
        answer = self._api.whole(self._routing_input.info, answer, sent=sent)
        # Read from what the client gets: it is shorter, without the prompt's ids.
        self._trace.usage = _usage_in(self._api, self._routing_input, answer.body) if answer.status == 200 else None
        body = cachefleet_native.without_zero_counts(answer.body) if self._omits_zeros else answer.body
        await self._reply.whole(answer.status, [*answer.headers, *self._told(answer.status)], body)

    @property
    def _omits_zeros(self) -> bool:
        """The pool of the worker that answers leaves counts of cached tokens that are 0 out."""
        chosen = self._placement.chosen
        return chosen is not None and chosen.pool in omitting(self._routing_input.model.declared)

    async def _refuse(self) -> None:
        lacking = self._transfer if self._outcome is Outcome.NO_PREFILL else None
        reason, error = lacking.refusal() if lacking else self._placement.refusal()
        if lacking and self._trace.decision:
            self._trace.decision = replace(turned_away(self._trace.decision, reason), verdict=Verdict.REJECT)
        self._context.metrics.admission_refusal(reason)
        await self._fail(error)

    async def _broken(self, error: ApiError) -> None:
        await self._reply.broken(error)

    async def _fail(self, error: ApiError) -> None:
        await self._reply.error(error, self._told())

    def _told(self, status: int = 0) -> list[Header]:
        told = decision_headers(self._trace.id, self._trace.decision)
        return [*told, APPLIED] if self._placement.cached_only and status == 200 else told

    def _note_attempt(self, outcome: str) -> None:
        chosen = self._placement.chosen
        if chosen is None:
            return
        answer, stream = self._opened.answer, self._opened.stream
        status = answer.status if answer else stream.status if stream else None
        seconds = self._context.clock() - self._attempt_began
        held_to = self._planner.attempt.threshold
        self._trace.attempts.append(AttemptRecord(chosen.worker, outcome, status, seconds, threshold=held_to))

    def _close(self) -> None:
        """Release the worker and settle the accounts, however the request has ended."""
        stream = self._opened.stream
        if stream is not None:
            stream.close()
        if self._progress.state in _SENT:
            # A client may disconnect between the last event and the end of the worker's connection.
            self._note_attempt(Outcome.FINISHED if stream and stream.done else self._context.cancelled)
        if self._trace.usage is not None:
            self._routing_input.learn(self._trace.usage.prompt_tokens)
        else:
            self._trace.cut_short = self._cut_short()
        self._exposed.close()
        self._placement.free(None if self._trace.usage is None else self._trace.usage.cached_tokens)

    def _cut_short(self) -> Usage | None:
        """What is known of an answer whose usage has not come; None where none was begun, and no client waited."""
        decision, attempts = self._trace.answered, self._trace.attempts
        if decision is None or not attempts:
            return None
        if self._transformer is not None:
            info = self._routing_input.info
            so_far = self._transformer.so_far(
                prompts=info.prompts, choices=info.choices, known_prompt=decision.prompt_tokens
            )
            return _possible(so_far, self._routing_input)
        if attempts[-1].outcome not in _CUT:
            return None
        self._may_tell(self._placement.chosen or decision)
        return Usage(decision.prompt_tokens)  # the worker has the prompt, and is at work on it

    def _may_tell(self, chosen: Decision) -> None:
        """Note the worker that was at work on a whole answer, where it may say how far it came."""
        info, model = self._routing_input.info, self._routing_input.model
        if not info.stream and chosen.url in self._context.fleet.render_facts(model.name).left_at:
            self._trace.left_at = chosen.url
            self._trace.most_tokens = (model.max_model_len or LONGEST) * max(1, info.prompts) * max(1, info.choices)


def _there(value: T | None) -> T:
    """Unwrap; the state table guarantees that it is set."""
    if value is None:
        raise RuntimeError("an action came before what it acts on")
    return value


def _usage_in(api: Api, routing_input: RoutingInput, body: bytes) -> Usage | None:
    return _possible(api.usage(body), routing_input)


def _possible(usage: Usage | None, routing_input: RoutingInput) -> Usage | None:
    """A worker's usage, held to what this request can have cost."""
    info, longest = routing_input.info, routing_input.model.max_model_len
    return within(usage, longest=longest, prompts=info.prompts, choices=info.choices)


def _prefilled(opened: AttemptResult) -> bool:
    """Whether the worker has computed the prompt; an answer that refuses the request does not show that."""
    answer = opened.answer
    return opened.outcome is Outcome.FIRST_EVENT or (
        opened.outcome is Outcome.ANSWERED and answer is not None and answer.status == 200
    )
