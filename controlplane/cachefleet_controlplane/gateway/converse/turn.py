"""One turn of a conversation, from its checkpoint to the next one; ``PlainTurn`` is a request of none.

It is committed when the worker's answer is whole, and before the client gets its end (A20). Nothing is kept of an
answer that broke, was cancelled or was refused by a gate. Nothing here fails a request that a worker can answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import cachefleet_native
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.gateway.converse.checkpoint import Checkpoint, Fresh
from cachefleet_controlplane.gateway.converse.rehydration import finished, restated, restated_event, told_response
from cachefleet_controlplane.gateway.converse.turn_plan import TurnOutcome
from cachefleet_controlplane.gateway.request.request import AnswerStage, Request, Served
from cachefleet_controlplane.gateway.send.answers.answer import error_code
from cachefleet_controlplane.gateway.send.answers.stream_filter import Passes
from cachefleet_controlplane.gateway.send.worker_answer import Answer
from cachefleet_controlplane.wire.json_members import encode
from cachefleet_runtime.sse import is_end

_GIVEN_UP = (
    *(b'"finish_reason":"cache_threshold"', b'"finish_reason":"abort"', b'"finish_reason":"error"'),
    b'"stop_reason":"cache_threshold"',
)
"""Endings of a choice that is not a complete answer; a quote within text is always escaped."""
_TOOL_CALLS = (b'"finish_reason":"tool_calls"', b'"stop_reason":"tool_use"')


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ended: the response where it is one, and whether a tool's result comes next."""

    body: bytes = b""
    """The response as its client gets it; b"" for other APIs."""
    calls_tool: bool = False


class Settling(Protocol):
    """Plans and commits turns."""

    def planned(self, turn: NamedTurn, request: Request) -> TurnOutcome:
        """Note the turn's rendered prompt; return the outcome of comparing it with the checkpoint."""
        ...

    async def commit(self, turn: NamedTurn, ending: Ending) -> TurnOutcome:
        """Keep the turn, in bounded time; return its outcome, a new one where it was not kept."""
        ...


class Turn(AnswerStage, Protocol):
    """What the layer of conversations calls while a request is served."""

    info: RequestInfo
    """The request with its whole input."""
    keeps_ids: bool
    outcome: TurnOutcome | None

    @property
    def named(self) -> bool:
        """Its request has an id, the same in every attempt."""
        ...


@dataclass(slots=True)
class PlainTurn:
    """A request of no conversation, or of one that may not be kept: all passes unchanged."""

    passes: ClassVar = Passes.MOST
    info: RequestInfo
    outcome: TurnOutcome | None = None
    keeps_ids: bool = False

    @property
    def named(self) -> bool:
        return self.outcome is not None

    def placed(self, request: Request, served: Served) -> Request:  # noqa: ARG002 # as Turn has it
        return request

    def begun(self, info: RequestInfo) -> None:
        self.info = info

    async def passed(self, events: Sequence[bytes]) -> Sequence[bytes]:
        return events

    async def answered(self, answer: Answer) -> Answer:
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """The position of a turn in its conversation, as it was looked up."""

    name: str = ""
    """Digest of the conversation's name; "" where its first response names it."""
    conversation: str = ""
    """"" where it is to begin."""
    expected: str | None = None
    """Id of the head to continue; None where a conversation begins."""
    seq: int = 0
    parent: str | None = None
    checkpoint: Checkpoint | None = None
    """What to compare with; not the head, where the turn branches off."""
    preferred: str = ""


class NamedTurn:
    """A turn of a conversation with a name: the client's, or that of its first response."""

    named = True
    passes: ClassVar = Passes.NOTHING

    def __init__(
        self,
        info: RequestInfo,
        thread: Thread,
        settling: Settling,
        *,
        previous: str = "",
        stores: bool = False,
        keeps_ids: bool,
    ) -> None:
        self.info = info
        self.thread = thread
        self.previous = previous
        self.stores = stores
        """Its response is to be stored."""
        self.keeps_ids = keeps_ids
        self.leaves = True
        """It is committed: a later turn can name it."""
        self.outcome: TurnOutcome | None = None
        self.fresh: Fresh | None = None
        self.served: Served = lambda: None
        self._settling = settling
        self._asked = ""
        """The client's name for the model, where the worker has another."""
        self._spoilt = False
        self._calls_tool = False
        self._over = False

    def placed(self, request: Request, served: Served) -> Request:
        """Plan the turn, and prefer the worker of the last one."""
        self.served, self._asked = served, request.asked_name
        self.outcome = self._settling.planned(self, request)
        return replace(request, preferred=self.thread.preferred or request.preferred)

    def begun(self, info: RequestInfo) -> None:
        """Keep the request: what is committed has its input."""

    async def passed(self, events: Sequence[bytes]) -> Sequence[bytes]:
        """Note errors and tool calls in events; commit before the last one is returned."""
        if self.previous:
            events = [restated_event(event, self.previous) for event in events]
        for event in events:
            self._look(event)
            if is_end(event) and not self._over:
                await self._end(told_response(event) if self._is_response else b"")
        return events

    async def answered(self, answer: Answer) -> Answer:
        """As ``passed`` for a whole answer; only a 200 is committed."""
        if answer.status != 200:
            return answer
        if self.previous:
            answer = replace(answer, body=restated(answer.body, self.previous))
        self._look(answer.body)
        await self._end(answer.body if self._is_response else b"")
        return answer

    @property
    def _is_response(self) -> bool:
        return self.info.endpoint is Endpoint.RESPONSES

    def _look(self, data: bytes) -> None:
        self._spoilt = self._spoilt or error_code(data) > 0 or any(mark in data for mark in _GIVEN_UP)
        self._calls_tool = self._calls_tool or any(mark in data for mark in _TOOL_CALLS)

    async def _end(self, body: bytes) -> None:
        self._over = True
        response = finished(body) if self._is_response else None
        if self._spoilt or not self.leaves or (self._is_response and response is None):
            return
        if body and self._asked:
            body = cachefleet_native.with_model(body, encode(self._asked))
        calls = self._calls_tool or (response is not None and response.calls_tool)
        self.outcome = await self._settling.commit(self, Ending(body, calls))
