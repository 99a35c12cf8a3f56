"""One generating request from its body to its last byte: the table of ``legs`` carried out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from cachefleet_controlplane.fleet import Fleet
from cachefleet_controlplane.flights import Flight
from cachefleet_controlplane.gateway.answer import StreamFilter, read_usage, restate_size, without_ids
from cachefleet_controlplane.gateway.asgi import Reply
from cachefleet_controlplane.gateway.credentials import Credentials
from cachefleet_controlplane.gateway.decision import Trace, decision_headers
from cachefleet_controlplane.gateway.errors import ApiError, error_event, no_ready_worker
from cachefleet_controlplane.gateway.fingerprints import Fingerprints
from cachefleet_controlplane.gateway.headers import Header, upstream_headers
from cachefleet_controlplane.gateway.legs import BLAMES, Action, Outcome, Progress, State, step
from cachefleet_controlplane.gateway.placing import Placing
from cachefleet_controlplane.gateway.upstream import Answer, Opened, Stream, Upstream
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.routing import Decision, Verdict
from cachefleet_controlplane.store.records import LegRecord

T = TypeVar("T")

RETRY_AFTER_SECONDS: Final = 2
"""What a client is told to wait where no worker is ready: the time it takes to notice one."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What serving needs; shared by all requests."""

    fleet: Fleet
    upstream: Upstream
    credentials: Credentials
    metrics: Metrics
    fingerprints: Fingerprints
    max_legs: int
    clock: Callable[[], float] = time.monotonic


class Exchange:
    """One request being answered; ``run`` answers it whatever happens, but for cancellation."""

    def __init__(self, parts: Parts, placing: Placing, *, reply: Reply, trace: Trace, began: float) -> None:
        self._parts = parts
        self._placing = placing
        self._reply = reply
        self._trace = trace
        self._began = began
        self._progress = Progress()
        self._chosen: Decision | None = None
        self._flight: Flight | None = None
        self._leg_began = 0.0
        self._opened = Opened(Outcome.LOST)

    async def run(self, headers: Iterable[Header]) -> None:
        """Answer; ``headers`` are the client's."""
        given = list(headers)
        action = Action.CHOOSE
        try:
            while (outcome := await self._act(action, given)) is not None:
                action = self._step(outcome)
        finally:
            self._close()

    async def _act(self, action: Action, given: list[Header]) -> Outcome | None:
        """Do what the table says; None once the answer is out."""
        match action:
            case Action.CHOOSE:
                return self._choose()
            case Action.SEND:
                return await self._send(given)
            case Action.RELAY:
                return await self._relay()
            case _:
                await self._conclude(action)
                return None

    async def _conclude(self, action: Action) -> None:
        match action:
            case Action.DELIVER:
                await self._deliver()
            case Action.REFUSE:
                await self._fail(no_ready_worker(self._placing.ask.model, retry_after=RETRY_AFTER_SECONDS))
            case Action.FAIL:
                await self._fail(_failure(self._opened.outcome))
            case Action.BREAK:
                await self._reply.end(error_event(502, "The worker's answer broke off."))
            case _:
                await self._reply.end()

    def _step(self, outcome: Outcome) -> Action:
        before = self._progress
        worker = self._chosen.full_name if self._chosen else ""
        self._progress, action = step(before, outcome, worker=worker, max_legs=self._parts.max_legs)
        if before.state is not State.CHOOSING and outcome is not Outcome.FIRST_EVENT:
            self._note_leg(outcome)
        if before.state is State.WAITING and outcome in BLAMES:
            self._blame(outcome, retried=action is Action.CHOOSE)
        return action

    def _blame(self, outcome: Outcome, *, retried: bool) -> None:
        chosen = _there(self._chosen)
        self._finish_flight()
        self._parts.fingerprints.forget(chosen.url)
        if retried:
            self._parts.metrics.leg_retry(outcome)
        # A 5xx may be the request's fault, and one lost connection no more than a closed idle one.
        suspected = chosen.full_name in self._progress.excluded or not retried
        if outcome is not Outcome.SERVER_ERROR and suspected:
            self._parts.fleet.worker_failed(chosen.full_name)

    def _choose(self) -> Outcome:
        decision = self._placing.decide(exclude=self._progress.excluded)
        if decision.verdict is not Verdict.ROUTE:
            # What placed the last leg explains more than that nobody is left.
            self._trace.decision = self._trace.decision or decision
            return Outcome.NO_WORKER
        self._chosen = self._trace.decision = decision
        self._flight = self._parts.fleet.begin(decision, self._placing.prompt)
        return Outcome.PLACED

    async def _send(self, given: list[Header]) -> Outcome:
        chosen = _there(self._chosen)
        now = self._leg_began = self._parts.clock()
        if not self._trace.legs:
            self._parts.metrics.gateway_added(max(0.0, now - self._began - self._placing.render_seconds))
        headers = upstream_headers(given, key=self._parts.credentials.of(chosen.url))
        path = self._placing.ask.endpoint
        self._opened = Opened(Outcome.LOST)  # of this leg nothing is known while it is waited for
        self._opened = await self._parts.upstream.open(chosen.url, path, self._placing.body, headers=headers)
        if _prefilled(self._opened) and self._flight is not None:
            self._flight.first_token()
        return self._opened.outcome

    async def _relay(self) -> Outcome:
        """Send what was held back, then what follows, each piece once the client has taken the one before."""
        stream, chosen = _there(self._opened.stream), _there(self._chosen)
        self._trace.ttft_seconds = self._parts.clock() - self._began
        sieve = self._placing.sieve(self._parts.fingerprints.of(chosen.url))
        await self._reply.start(stream.status, [*stream.headers, *self._told()])
        try:
            await self._pump(stream, sieve)
        finally:  # also where the client has gone
            self._trace.usage = sieve.usage
            self._parts.fingerprints.learn(chosen.url, sieve.fingerprint)
        return stream.outcome or Outcome.FINISHED

    async def _pump(self, stream: Stream, sieve: StreamFilter) -> None:
        events = stream.first
        while events or stream.outcome is None:
            if data := b"".join(map(sieve.feed, events)):
                await self._reply.write(data)
            events = await stream.more()
        if data := sieve.end():
            await self._reply.write(data)

    async def _deliver(self) -> None:
        answer = _there(self._opened.answer)
        self._trace.usage = read_usage(answer.body) if answer.status == 200 else None
        await self._reply.whole(answer.status, [*answer.headers, *self._told()], self._as_asked(answer))

    def _as_asked(self, answer: Answer) -> bytes:
        if answer.status == 400:
            return restate_size(answer.body, sent=self._placing.sent, asked=self._placing.ask.size)
        return without_ids(answer.body) if self._placing.ask.ids_wanted else answer.body

    async def _fail(self, error: ApiError) -> None:
        await self._reply.error(error, self._told())

    def _told(self) -> list[Header]:
        return decision_headers(self._trace.id, self._trace.decision)

    def _note_leg(self, outcome: str) -> None:
        if self._chosen is None:
            return
        answer, stream = self._opened.answer, self._opened.stream
        status = answer.status if answer else stream.status if stream else None
        seconds = self._parts.clock() - self._leg_began
        self._trace.legs.append(LegRecord(self._chosen.worker, outcome, status, seconds))

    def _finish_flight(self, cached_tokens: int | None = None) -> None:
        if self._flight is not None:
            self._flight.finish(cached_tokens=cached_tokens)
            self._flight = None

    def _close(self) -> None:
        """Whatever the end was: the worker is freed, the accounts are settled."""
        stream = self._opened.stream
        if stream is not None:
            stream.close()
        if self._progress.state in {State.WAITING, State.RELAYING}:
            # A client may leave between the last event and the end of the worker's connection.
            self._note_leg(Outcome.FINISHED if stream and stream.done else "cancelled")
        self._finish_flight(None if self._trace.usage is None else self._trace.usage.cached_tokens)


def _there(value: T | None) -> T:
    """What the table has seen to."""
    if value is None:
        raise RuntimeError("an action came before what it acts on")
    return value


def _prefilled(opened: Opened) -> bool:
    """The worker has computed the prompt: an answer that refuses it says nothing of the kind."""
    answer = opened.answer
    return opened.outcome is Outcome.FIRST_EVENT or (
        opened.outcome is Outcome.ANSWERED and answer is not None and answer.status == 200
    )


def _failure(outcome: Outcome) -> ApiError:
    if outcome is Outcome.SILENT:
        return ApiError(504, "The worker did not answer in time.")
    return ApiError(502, "The worker's answer could not be relayed.")
