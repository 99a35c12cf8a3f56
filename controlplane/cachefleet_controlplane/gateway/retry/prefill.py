"""A prefill attempt: a Prefill worker computes a prompt, and tells where the answering worker finds its blocks.

For the Prefill worker it is a request for one token. The choice of a worker, the wait for room and failures are those
of any request (``retry_loop``), with another duty. Its answer's ``kv_transfer_params`` are sent with the final attempt,
unread. A connector that needs none, such as those with a shared store, gives none.
"""

from __future__ import annotations

from typing import Final

import msgspec
from cachefleet_native import upstream_headers
from msgspec import Raw
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.endpoint_apis import api_of
from cachefleet_controlplane.gateway.apis.request_info import THRESHOLD_FIELD, TRANSFER_FIELD
from cachefleet_controlplane.gateway.engine_deaths.exposed_request import ExposedRequest
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.gateway.request.resume_eligibility import unmarked
from cachefleet_controlplane.gateway.retry.gateway_context import GatewayContext
from cachefleet_controlplane.gateway.retry.retry_loop import RetryLoop, unwrap
from cachefleet_controlplane.gateway.retry.retry_state_machine import Action, State
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import AttemptResult
from cachefleet_controlplane.routing.decision import Reason
from cachefleet_controlplane.selection.eligibility import Duty
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import FALSE, READ_ERRORS, ZERO, Fields, edited

KIND: Final = "prefill"
_ONE: Final = Raw(b"1")
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
    THRESHOLD_FIELD: ZERO,
    TRANSFER_FIELD: _ASKED,
}

_fields = msgspec.json.Decoder(Fields)


def prefill_body(body: bytes) -> tuple[bytes, int]:
    """Return a Prefill worker's body for a body of ours, and its number of members."""
    return edited(unmarked(body), _CHANGES)


def transfer_params(body: bytes) -> Raw | None:
    """Return a Prefill answer's ``kv_transfer_params`` as raw JSON; None without any."""
    try:
        params = _fields.decode(body).get(TRANSFER_FIELD)
    except READ_ERRORS:
        return None
    return None if params is None or bytes(params) == b"null" else Raw(bytes(params))


class PrefillAttempt(RetryLoop):
    """Has a Prefill worker compute the prompt of ``request``, sent to ``path``; ``run`` does, then the results are set.

    It counts attempts of its own. The record has the decisions on who answers, and the sum of all waits.
    """

    kind = KIND

    def __init__(self, context: GatewayContext, request: Request, exposed: ExposedRequest, *, path: str) -> None:
        self._decisions = request.arrival.trace.aside()
        body, self.members = prefill_body(request.body)
        prompt = replace(request.prompt, max_tokens=1, choices=1)
        request = replace(request, duty=Duty.PREFILL, body=body, prompt=prompt, preferred="", sent_to=lambda _: None)
        super().__init__(context, request, exposed, self._decisions)
        self._path = path

    @property
    def opened(self) -> AttemptResult:
        """The last Prefill worker's answer."""
        return self._opened

    @property
    def params(self) -> Raw | None:
        """``kv_transfer_params`` for the final attempt; None without any."""
        return transfer_params(self._opened.answer.body) if self._opened.answer else None

    async def run(self) -> Outcome:
        """Return PREFILLED, PREFILL_FAILED (``opened`` has the answer), PREFILL_LOST or NO_PREFILL (``refusal``)."""
        try:
            outcome = self._result(await self._follow())
            self._context.metrics.prefill_attempt(outcome)
            return outcome
        finally:
            if self._progress.state is State.WAITING:
                self._note_attempt(self._context.cancelled)
            self._placement.free(computed=self._decisions.computed_tokens or 0)
            self._trace.queued_seconds = self._decisions.queued_seconds

    def refusal(self) -> tuple[Reason, ApiError]:
        """Return why no Prefill worker could be asked, and the client's error."""
        reason, error = self._placement.refusal()
        return (Reason.NO_PREFILL_WORKER if reason is Reason.NO_READY_WORKER else reason), error

    async def _send(self) -> Outcome:
        chosen = unwrap(self._placement.chosen)
        headers = upstream_headers(self._begin(chosen), key=self._context.credentials.of(chosen.url))
        work = self._context.upstream.open(chosen.url, self._path, self._request.body, headers=headers)
        self._opened = await self._bounded(chosen, work)
        if self._opened.stream is not None:  # nobody asked for one
            self._opened.stream.close()
            return Outcome.OVERSIZED
        answer = self._opened.answer
        if answer is not None and answer.status == 200:
            self._placement.first_token()
        return self._opened.outcome

    def _result(self, action: Action) -> Outcome:
        answer = self._opened.answer
        if action is Action.DELIVER and answer is not None:
            if answer.status != 200:
                return Outcome.PREFILL_FAILED
            self._account(answer.body)
            return Outcome.PREFILLED
        return Outcome.NO_PREFILL if action is Action.REFUSE and not self._progress.attempts else Outcome.PREFILL_LOST

    def _account(self, body: bytes) -> None:
        """Keep what the worker counted: of what it brings over, the answering worker's usage says no more."""
        self._decisions.usage = self._possible(api_of(self._request.info.endpoint).usage(body))
        self._trace.prefill = self._trace.prefill or self._decisions
