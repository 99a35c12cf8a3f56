"""Attempts of one request for one duty: chooses a worker, waits for room, sends, as the retry table says.

``Exchange`` is the loop of a request for its answer, ``PrefillAttempt`` the one for a computed prompt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final, TypeVar

from cachefleet_controlplane.gateway.engine_deaths.exposed_request import ExposedRequest
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.gateway.retry.attempt_plan import AS_ASKED, AttemptMode
from cachefleet_controlplane.gateway.retry.gateway_context import GatewayContext
from cachefleet_controlplane.gateway.retry.retry_state_machine import Action, Progress, State, begun, step
from cachefleet_controlplane.gateway.retry.worker_choice import WorkerChoice
from cachefleet_controlplane.gateway.send.answers.usage import Usage, within
from cachefleet_controlplane.gateway.send.outcome import BLAMES, BREAKS, Outcome
from cachefleet_controlplane.gateway.send.worker_answer import AttemptResult
from cachefleet_controlplane.routing.decision import Decision
from cachefleet_controlplane.store.decision_records import AttemptRecord
from cachefleet_controlplane.wire.headers import Header

T = TypeVar("T")

SENT: Final = frozenset({State.WAITING, State.RELAYING})
"""An attempt is under way."""

Act = Coroutine[Any, Any, Outcome | None]


class RetryLoop(ABC):
    """One run through the table; attempts are noted in the request's trace, decisions in ``decisions``."""

    kind: ClassVar[str] = "answer"
    """What the records of its attempts call them."""

    def __init__(
        self,
        context: GatewayContext,
        request: Request,
        exposed: ExposedRequest,
        decisions: DecisionTrace,
        plan: Callable[[Decision, Progress], AttemptMode] = lambda *_: AS_ASKED,
    ) -> None:
        arrival = request.arrival
        self._context = context
        self._request = request
        self._exposed = exposed
        self._trace, self._began = arrival.trace, arrival.began
        self._progress = begun()
        self._placement = WorkerChoice(context, request, decisions, plan)
        self._attempt_began = 0.0
        self._threshold: float | None = None
        """The hit threshold that the attempt is sent with; None: the gateway sets none."""
        self._opened = AttemptResult(Outcome.LOST)
        self._outcome = Outcome.LOST
        """The last outcome, of any action."""

    async def _follow(self) -> Action:
        """Carry out action after action; return the last one."""
        action = Action.CHOOSE
        while (outcome := await self._act(action)) is not None:
            action = self._step(await self._died(outcome) if outcome in BREAKS else outcome)
        return action

    def _act(self, action: Action) -> Act:
        """Carry out an action of the table; None after the last one."""
        if action is Action.CHOOSE:
            return self._choose()
        if action is Action.SEND:
            return self._send()
        return self._placement.wait(self._progress) if action is Action.QUEUE else self._other(action)

    async def _choose(self) -> Outcome:
        if await self._exposed.may_go():
            return self._placement.choose(self._progress)
        self._fatal()
        return Outcome.FATAL

    @abstractmethod
    async def _send(self) -> Outcome:
        """Send an attempt to the worker chosen."""

    async def _other(self, action: Action) -> Outcome | None:  # noqa: ARG002 # nothing goes to a client
        """Carry out any other action of the table; None after the last one."""
        return None

    def _fatal(self) -> None:  # noqa: B027 # a loop that answers a client has something to note
        """Note that the request may be sent to no worker, since it ends engines."""

    def _begin(self, chosen: Decision) -> list[Header]:
        """Begin an attempt; return the client's headers for it."""
        self._attempt_began = self._context.clock()
        self._opened = AttemptResult(Outcome.LOST)  # in case the attempt is cancelled
        return self._trace.attempt_headers(list(self._request.headers), self._attempt_began, chosen.url)

    def _bounded(
        self, chosen: Decision, work: Coroutine[Any, Any, AttemptResult]
    ) -> Coroutine[Any, Any, AttemptResult]:
        """What an attempt brings, ended early where its worker has stalled and another one would take it."""
        last = self._progress.attempts >= self._context.max_attempts
        waiting = self._placement.waiting(chosen, None if last else self._progress.excluded)
        return self._context.stalled.bounded(waiting, work)

    async def _died(self, outcome: Outcome) -> Outcome:
        """Note an attempt that was broken off, if the engine has ended; DIED then, unless the client has bytes."""
        state, chosen = self._progress.state, self._placement.chosen
        if state not in SENT or chosen is None:
            return outcome
        produced = self._produced(chosen)
        died = await self._exposed.lost(chosen, began=self._attempt_began, produced=produced)
        return Outcome.DIED if died and state is State.WAITING else outcome

    def _produced(self, chosen: Decision) -> bool:  # noqa: ARG002 # a prompt is computed, no token produced
        """Whether the worker will have produced tokens that are not here."""
        return False

    def _step(self, outcome: Outcome) -> Action:
        before, self._outcome = self._progress, outcome
        chosen = self._placement.chosen
        worker = chosen.full_name if chosen else ""
        self._progress, action = step(before, outcome, worker=worker, max_attempts=self._context.max_attempts)
        if before.state in SENT and outcome is not Outcome.FIRST_EVENT:
            self._note_attempt(outcome)
        if outcome in BLAMES and (before.state is State.WAITING or action is Action.RESUME):
            self._blame(outcome, retried=action in {Action.CHOOSE, Action.RESUME})
        return action

    def _blame(self, outcome: Outcome, *, retried: bool) -> None:
        chosen = unwrap(self._placement.chosen)
        self._placement.free()
        self._context.blame(chosen, outcome, excluded=chosen.full_name in self._progress.excluded, retried=retried)

    def _note_attempt(self, outcome: str) -> None:
        chosen = self._placement.chosen
        if chosen is None:
            return
        answer, stream = self._opened.answer, self._opened.stream
        status = answer.status if answer else stream.status if stream else None
        seconds = self._context.clock() - self._attempt_began
        why = self._unresumed(outcome) if self._progress.begun else ""
        record = AttemptRecord(chosen.worker, outcome, status, seconds, self.kind, self._threshold, why)
        self._trace.attempts.append(record)

    def _unresumed(self, outcome: str) -> str:  # noqa: ARG002 # a prompt is computed anew
        """Why nobody goes on with an answer that has begun, and whose attempt ended so; "" where somebody does."""
        return ""

    def _possible(self, usage: Usage | None) -> Usage | None:
        """A worker's usage, held to what this request can have cost."""
        info, longest = self._request.info, self._request.model.max_model_len
        return within(usage, longest=longest, prompts=info.prompts, choices=info.choices)


def unwrap(value: T | None) -> T:
    """Return the value; the retry table guarantees that it is set."""
    if value is None:
        raise RuntimeError("an action came before what it acts on")
    return value
