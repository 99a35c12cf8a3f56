"""The last response of one WebSocket connection, which the next request there may continue.

It is kept in memory for that connection alone, whether it is stored or not, within ``max_bytes`` and the tenant's share
of a budget. Where there is no room nothing is kept: the client is told that the id is not found, and sends the whole
conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.gateway.body_budget import BodyShare
from cachefleet_controlplane.gateway.converse.converse_layer import Begin
from cachefleet_controlplane.gateway.converse.rehydration import (
    PREVIOUS,
    finished,
    input_items,
    joined,
    previous_id,
    restated_event,
    split,
    told_response,
)
from cachefleet_controlplane.gateway.converse.turn import Turn
from cachefleet_controlplane.gateway.converse.turn_plan import TurnOutcome
from cachefleet_controlplane.gateway.request.request import Request, Served
from cachefleet_controlplane.gateway.responses_socket.warm_up import WarmUpEvents, is_warm_up, warming
from cachefleet_controlplane.gateway.send.answers.stream_filter import Passes
from cachefleet_controlplane.gateway.send.worker_answer import Answer
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_runtime.sse import is_end

NOT_FOUND: Final = "previous_response_not_found"
"""The code by which OpenAI's clients know that they have to send the whole conversation."""
_UNKNOWN: Final = frozenset({400, 404})


class ResponseMemory:
    """The conversation up to a connection's last response; ``share`` is the connection's own."""

    def __init__(self, share: BodyShare, *, max_bytes: int) -> None:
        self._share = share
        self._max_bytes = max_bytes
        self._id = ""
        self._items = b""
        self.model = ""
        """The model that the connection's last request was for; "" before any."""

    def holds(self, response: str) -> bool:
        """Whether that is the response which is kept."""
        return bool(response) and response == self._id

    async def turn(self, info: RequestInfo, begin: Begin) -> RememberedTurn:
        """Begin the turn of a request, with the items that it continues where they are here.

        ApiError as ``begin``; 400 NOT_FOUND where the previous response is neither here nor stored.
        """
        previous = previous_id(info)
        before = split(self._items) if self.holds(previous) else None
        warm_up = WarmUpEvents() if is_warm_up(info) else None
        try:
            turn = await begin(info if warm_up is None else warming(info), before)
        except ApiError as error:
            if error.param == PREVIOUS and error.status in _UNKNOWN:
                raise _not_found(previous) from error
            raise
        return RememberedTurn(turn, self, previous=previous, warm_up=warm_up)

    def keep(self, info: RequestInfo, body: bytes) -> None:
        """Keep a response to ``info``, whose input is whole, in place of the one before; nothing of one that failed."""
        response = finished(body)
        if response is None:
            return
        self.forget()
        try:
            items = joined((*input_items(info), *response.output))
            if len(items) > self._max_bytes:
                return
            self._share.take(len(items))
        except ApiError:
            return
        self._id, self._items = response.id, items

    def forget(self) -> None:
        """Keep nothing."""
        self._id, self._items = "", b""
        self._share.give_back()


def _not_found(previous: str) -> ApiError:
    message = f"Previous response with id '{previous}' not found. Send the whole conversation as `input`."
    return ApiError(400, message, param=PREVIOUS, code=NOT_FOUND)


class RememberedTurn:
    """A turn whose response is kept in ``memory`` before its client gets the end."""

    passes: ClassVar = Passes.NOTHING

    def __init__(
        self, turn: Turn, memory: ResponseMemory, *, previous: str, warm_up: WarmUpEvents | None = None
    ) -> None:
        self._turn = turn
        self._warm_up = warm_up
        self._memory = memory
        self._previous = previous
        self.info = turn.info
        self.keeps_ids = turn.keeps_ids
        self.named = turn.named

    @property
    def outcome(self) -> TurnOutcome | None:
        """The outcome of the turn."""
        return self._turn.outcome

    @outcome.setter
    def outcome(self, outcome: TurnOutcome | None) -> None:
        self._turn.outcome = outcome

    def placed(self, request: Request, served: Served) -> Request:
        """As the turn."""
        return self._turn.placed(request, served)

    def begun(self, info: RequestInfo) -> None:
        """Keep the request: what is remembered has its input."""

    async def passed(self, events: Sequence[bytes]) -> Sequence[bytes]:
        """As the turn, then keep the response that the last event tells."""
        if self._warm_up is not None:
            events = self._warm_up(events)
        events = await self._turn.passed(events)
        if self._previous:
            events = [restated_event(event, self._previous) for event in events]
        for event in events:
            if is_end(event):
                self._memory.keep(self.info, told_response(event))
        return events

    async def answered(self, answer: Answer) -> Answer:
        """As the turn: a whole answer is an error here, of which nothing is kept."""
        return await self._turn.answered(answer)
