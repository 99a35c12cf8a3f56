"""One request from its placement to its last byte: carries out the table of ``retry_state_machine``."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final

import cachefleet_native
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.api import Api
from cachefleet_controlplane.gateway.apis.endpoint_apis import api_of
from cachefleet_controlplane.gateway.apis.request_info import APPLIED, TRANSFER_FIELD
from cachefleet_controlplane.gateway.converse.turn import PlainTurn
from cachefleet_controlplane.gateway.place.placement_decision import decide
from cachefleet_controlplane.gateway.request.rendered_prompt import HeldRequest
from cachefleet_controlplane.gateway.request.replay_eligibility import Unresumed
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.gateway.retry.attempt_failures import failure
from cachefleet_controlplane.gateway.retry.attempt_plan import Attempt, AttemptPlanner
from cachefleet_controlplane.gateway.retry.detokenizer import detokenizer
from cachefleet_controlplane.gateway.retry.gateway_context import GatewayContext
from cachefleet_controlplane.gateway.retry.prefill import PrefillAttempt
from cachefleet_controlplane.gateway.retry.resume import Resumption
from cachefleet_controlplane.gateway.retry.retry_loop import SENT, Act, RetryLoop, unwrap
from cachefleet_controlplane.gateway.retry.retry_state_machine import Action
from cachefleet_controlplane.gateway.retry.stream_relay import StreamRelay
from cachefleet_controlplane.gateway.send.answers.produced_tokens import aborts
from cachefleet_controlplane.gateway.send.answers.stream_filter import StreamFilter
from cachefleet_controlplane.gateway.send.answers.usage import LONGEST, Usage, omitting
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import AttemptResult
from cachefleet_controlplane.routing.decision import Decision, Reason, Verdict, turned_away
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.wire.json_members import encode

_PRODUCING_SECONDS: Final = 2.0
"""A whole answer that takes longer than its prompt was predicted to, and this, counts as begun."""
_BROKEN: Final = frozenset({Outcome.LOST, Outcome.SILENT, Outcome.OVERSIZED, Outcome.ABORTED, Outcome.ERROR_EVENT})
"""Ends of a stream that has begun after which another worker would go on, could it."""
_CUT = frozenset({Outcome.CANCELLED, Outcome.STOPPED, Outcome.RESTARTED})
"""The worker was at work when the client left, or the gateway ended the request."""


class Exchange(RetryLoop):
    """Answers one request; ``run`` answers whatever happens, except when it is cancelled."""

    def __init__(self, context: GatewayContext, request: Request) -> None:
        self._resuming = Resumption(context.fleet, request, context.kept)
        self._planner = AttemptPlanner(self._resuming, max_attempts=context.max_attempts)
        trace = request.arrival.trace
        super().__init__(context, request, context.exposed(request), trace, self._planner.plan)
        self._reply = request.arrival.reply
        self._turn = request.turn or PlainTurn(request.info)
        self._prefilling: PrefillAttempt | None = None
        self._api: Api = api_of(request.info.endpoint)
        self._transformer: StreamFilter | None = None

    async def run(self) -> None:
        """Answer the client; to be called once."""
        request = self._request
        self._placement.cached_only = request.cached_only
        del request  # no copy of the prompt is kept once a stream is open
        try:
            await self._follow()
        finally:
            self._close()

    def _other(self, action: Action) -> Act:
        if action is Action.RELAY:
            return self._relay()
        if action is Action.PREFILL:
            return self._prefill()
        return self._resume() if action is Action.RESUME else self._conclude(action)

    def _fatal(self) -> None:
        self._context.metrics.fatal_request(self._exposed.refusal)
        if self._trace.decision is None:
            self._trace.decision = turned_away(decide(self._context.fleet, self._request), Reason.FATAL_REQUEST)

    def _produced(self, chosen: Decision) -> bool:
        patience = chosen.seconds + _PRODUCING_SECONDS
        return not self._request.info.stream and self._context.clock() - self._attempt_began > patience

    async def _conclude(self, action: Action) -> None:
        error = self._exposed.error()
        if error is not None and action is not Action.CLOSE:
            await (self._reply.broken(error) if self._reply.started else self._fail(error))
            return
        match action:
            case Action.DELIVER:
                await self._deliver()
            case Action.REFUSE:
                await self._refuse()
            case Action.FAIL:
                await self._fail(failure(self._outcome, self._opened))
            case Action.BREAK:
                await self._reply.broken(ApiError(502, "The worker's answer broke off."))
            case _:
                await self._reply.end()

    async def _send(self) -> Outcome:
        chosen = unwrap(self._placement.chosen)
        headers, first = self._begin(chosen), not self._trace.attempts
        if first:
            others = self._request.render_seconds + (self._trace.queued_seconds or 0.0) + self._trace.cold_seconds
            self._context.metrics.gateway_added(max(0.0, self._attempt_began - self._began - others))
        recording = self._recording(chosen)
        if self._resuming.resumed and self._resuming.replay is not None and not recording:
            return Outcome.UNFIT
        attempt = self._planner.next(self._progress)
        self._threshold = attempt.threshold
        key = self._context.credentials.of(chosen.url)
        sent = cachefleet_native.upstream_headers(headers, key=key, hooked=attempt.hooked)
        work = _send_attempt(
            *(self._context.upstream, self._request, attempt, chosen.url),
            [*sent, *recording] if recording else sent,
            resumed=self._resuming.resumed,
        )
        self._opened = await self._bounded(chosen, work)
        outcome, refusal = self._planner.outcome(self._opened)
        if refusal is not None:
            self._placement.free()
            self._planner.refuted(chosen, refusal, self._context.fleet)
            self._context.metrics.gate_refusal()
            return outcome
        if _prefilled(self._opened) and self._placement.inflight is not None:
            self._placement.first_token()
            self._context.fleet.refuted_blocks.settle(chosen.id, self._resuming.request.prompt.keys)
        answer = self._opened.answer
        handed_back = self._resuming.takes_back(answer)
        if not handed_back and answer is not None and answer.status == 200 and aborts(answer.body):
            return Outcome.ABORTED
        if outcome is Outcome.ANSWERED or (outcome is Outcome.FIRST_EVENT and self._resuming.resumed):
            self._exposed.ended()
        return Outcome.HANDED_BACK if handed_back else outcome

    def _recording(self, chosen: Decision) -> list[tuple[str, str]]:
        """The header by which the worker chosen records its stream; none where it cannot, or need not."""
        replay = self._resuming.replay
        if replay is None or chosen.url not in self._context.fleet.render_facts(self._request.model.name).replays_at:
            return []
        return [replay.header]

    def _elsewhere(self, chosen: Decision) -> bool:
        """Whether another worker than the one chosen would go on with the stream now."""
        return self._placement.elsewhere(chosen, self._progress.excluded | self._unfit)

    @property
    def _unfit(self) -> frozenset[str]:
        """Workers that cannot go on with its stream: a recorded one needs another plugin that makes it again."""
        if self._resuming.replay is None:
            return frozenset()
        return self._context.fleet.render_facts(self._request.model.name).replay_lacking

    def _unresumed(self, outcome: str) -> str:
        if outcome == Outcome.UNFIT:
            return Unresumed.NOT_REPLAYED
        return self._resuming.why if outcome in _BROKEN else ""

    async def _prefill(self) -> Outcome:
        """Have a Prefill worker compute the prompt of the next attempt."""
        self._prefilling = attempt = PrefillAttempt(
            self._context, self._resuming.request, self._exposed, path=self._resuming.path
        )
        outcome = await attempt.run()
        if outcome is Outcome.PREFILLED:
            self._planner.transfer = attempt.params
        else:
            self._opened = attempt.opened
        return outcome

    async def _relay(self) -> Outcome:
        """Send the events held back, then those that follow, each once the client has taken the one before."""
        stream, chosen = unwrap(self._opened.stream), unwrap(self._placement.chosen)
        if self._transformer is None:
            self._trace.ttft_seconds = self._context.clock() - self._began
            self._transformer = self._filter_of(chosen)
            self._reply.numbered(self._transformer)
            await self._reply.start(stream.status, [*stream.headers, *self._headers(stream.status)])
            self._forget()
        transformer = self._transformer
        try:
            relay = StreamRelay(self._reply, self._turn, self._resuming, self._context.stalled)
            elsewhere = partial(self._elsewhere, chosen)
            outcome = await relay.run(stream, transformer, worker=chosen.full_name, elsewhere=elsewhere)
            if outcome is Outcome.FINISHED:
                if self._resuming.failed:
                    await self._died(outcome)
                else:
                    self._exposed.ended()
            return outcome
        finally:  # also where the client has disconnected
            self._trace.usage = self._possible(transformer.usage)
            self._context.fingerprints.learn(chosen.url, transformer.fingerprint)

    def _forget(self) -> None:
        """Once a stream is open keep no copy of the prompt: thousands may be, for long."""
        self._prefilling = None
        self._exposed.begun()
        self._planner.begun()
        self._resuming.begun()
        self._placement.request = self._request = self._resuming.request
        self._turn.begun(self._request.info)

    async def _resume(self) -> Outcome:
        """Learn what to ask the next worker for."""
        if self._opened.stream is not None:
            self._opened.stream.close()
        self._placement.free()
        self._trace.continued = self._trace.answered
        self._context.metrics.attempt_retry(self._trace.attempts[-1].outcome)
        context = self._context
        text = detokenizer(context.fleet, context.upstream, context.credentials, model=self._request.model)
        if not await self._resuming.go_on(text, moved=self._outcome is Outcome.MOVED):
            return Outcome.STRANDED
        self._placement.request = self._resuming.request
        return Outcome.RESUMABLE

    async def _deliver(self) -> None:
        answer = unwrap(self._opened.answer)
        answer = await self._turn.answered(self._resuming.joined(answer))
        failed = self._prefilling if self._outcome is Outcome.PREFILL_FAILED else None
        sent = failed.members if failed else self._planner.attempt.members
        answer = self._api.whole(self._request.info, answer, sent=sent)
        # Read from what the client gets: it is shorter, without the prompt's ids.
        self._trace.usage = self._possible(self._api.usage(answer.body)) if answer.status == 200 else None
        body = cachefleet_native.without_zero_counts(answer.body) if self._omits_zeros else answer.body
        if answer.status == 200 and (asked := self._request.asked_name):
            body = cachefleet_native.with_model(body, encode(asked))
        await self._reply.whole(answer.status, [*answer.headers, *self._headers(answer.status)], body)

    def _filter_of(self, chosen: Decision) -> StreamFilter:
        """The filter of a stream of the worker chosen, as its client is to see it."""
        made = self._api.transformer(self._request.info, self._context.fingerprints.of(chosen.url))
        made.omit_zeros(omit=self._omits_zeros)
        if asked := self._request.asked_name:
            made.name_model(asked)
        return made

    @property
    def _omits_zeros(self) -> bool:
        """The pool of the worker that answers leaves counts of cached tokens that are 0 out."""
        chosen = self._placement.chosen
        return chosen is not None and chosen.pool in omitting(self._request.model.declared)

    async def _refuse(self) -> None:
        lacking = self._prefilling if self._outcome is Outcome.NO_PREFILL else None
        reason, error = lacking.refusal() if lacking else self._placement.refusal()
        if lacking and self._trace.decision:
            self._trace.decision = replace(turned_away(self._trace.decision, reason), verdict=Verdict.REJECT)
        self._context.metrics.admission_refusal(reason)
        if not self._placement.cached_only and self._context.fleet.lacks_workers(self._request.model.name):
            self._context.fleet.demands.of(self._request.fleet).refused()
        await self._fail(error)

    async def _fail(self, error: ApiError) -> None:
        await self._reply.error(error, self._headers())

    def _headers(self, status: int = 0) -> list[Header]:
        headers = self._trace.headers(self._trace.decision)
        return [*headers, APPLIED] if self._placement.cached_only and status == 200 else headers

    def _close(self) -> None:
        """Release the worker and settle the accounts, however the request has ended."""
        stream = self._opened.stream
        if stream is not None:
            stream.close()
        if self._progress.state in SENT:
            # A client may disconnect between the last event and the end of the worker's connection.
            self._note_attempt(Outcome.FINISHED if stream and stream.done else self._context.cancelled)
        if self._trace.usage is not None:
            self._request.learn(self._trace.usage.prompt_tokens)
        else:
            self._trace.cut_short = self._cut_short()
        self._exposed.close()
        self._resuming.close()
        cached = None if self._trace.usage is None else self._trace.usage.cached_tokens
        computed = self._trace.computed_tokens
        self._placement.free(cached, computed=0 if computed is None and not _prefilled(self._opened) else computed)

    def _cut_short(self) -> Usage | None:
        """What is known of an answer whose usage has not come; None where none was begun, and no client waited."""
        decision, attempts = self._trace.answered, self._trace.attempts
        if decision is None or not attempts:
            return None
        if self._transformer is not None:
            info = self._request.info
            so_far = self._transformer.so_far(
                prompts=info.prompts, choices=info.choices, known_prompt=decision.prompt_tokens
            )
            return self._possible(so_far)
        if attempts[-1].outcome not in _CUT:
            return None
        self._may_tell(self._placement.chosen or decision)
        return Usage(decision.prompt_tokens)  # the worker has the prompt, and is at work on it

    def _may_tell(self, chosen: Decision) -> None:
        """Note the worker that was at work on a whole answer, where it may say how far it came."""
        info, model = self._request.info, self._request.model
        if not info.stream and chosen.url in self._context.fleet.render_facts(model.name).left_at:
            self._trace.left_at = chosen.url
            self._trace.most_tokens = (model.max_model_len or LONGEST) * max(1, info.prompts) * max(1, info.choices)


def exchange(context: GatewayContext, request: Request) -> Coroutine[Any, Any, None]:
    """Answer a request whose prompt is known, whatever happens, except when it is cancelled: the innermost layer."""
    request, trace = context.affinity.applied(request), request.arrival.trace
    if request.turn is not None:
        request = request.turn.placed(request, lambda: trace.decision)
    return Exchange(context, request).run()  # which decides how much of the request is kept, and how long


def _prefilled(opened: AttemptResult) -> bool:
    """Whether the worker has computed the prompt; an answer that refuses the request does not show that."""
    answer = opened.answer
    return opened.outcome is Outcome.FIRST_EVENT or (
        opened.outcome is Outcome.ANSWERED and answer is not None and answer.status == 200
    )


async def _send_attempt(
    upstream: Upstream,
    request: Request,
    attempt: Attempt,
    url: str,
    headers: Sequence[tuple[str, str]],
    *,
    resumed: bool,
) -> AttemptResult:
    """Send an attempt of a request; the rest of an answer (``resumed``) is always sent whole."""
    continuing, held = (None, None) if resumed else (request.continuing, request.rendering.held)
    if held is not None and (opened := await _go(upstream, held, attempt, url)) is not None:
        return opened if continuing is None else continuing.answered(url, opened)
    path, watch, beside = attempt.path, attempt.watch, request.client
    if continuing is None:
        return await upstream.open(
            url, path, attempt.whole() + attempt.record, headers=headers, watch=watch, beside=beside
        )
    kept = [*headers, *continuing.headers(url)]

    async def send(body: bytes) -> AttemptResult:
        return await upstream.open(url, path, body, headers=kept, watch=watch, beside=beside)

    return await continuing.send(url, attempt.whole(), send)


async def _go(upstream: Upstream, held: HeldRequest, attempt: Attempt, url: str) -> AttemptResult | None:
    """Have the worker answer that holds the request; None where it does no more: then it is sent again.

    Not so with a transfer: the worker may have taken what the Prefill worker kept for it, once.
    """
    if not held.answer.take():
        return None
    if url != held.url or (attempt.changes and not held.late):
        held.answer.close()
        return None
    members = encode(attempt.changes) if attempt.changes else b""
    opened = await upstream.go(held.answer, url=url, members=members, watch=attempt.watch)
    return None if opened.outcome is Outcome.LOST and TRANSFER_FIELD not in attempt.changes else opened
