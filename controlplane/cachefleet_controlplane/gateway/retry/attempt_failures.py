"""What a client is told where a worker was asked and gave no answer that can be used. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import AttemptResult
from cachefleet_controlplane.wire.errors import ApiError

_KEY_REFUSED: Final = (
    "The worker does not take the gateway's own key. Your API key is not at fault; an operator has to look."
)
_COMPRESSED: Final = (
    "The worker's answer is compressed, though it was asked not to be, and cannot be read. An operator has to turn "
    "compression off between this gateway and the workers."
)
_CROWDED: Final = "Too many bytes of answers are under way. Ask for a stream, or try again."
_RETRY_AFTER: Final = {"retry-after": "2"}

_FIRST: Final[Mapping[Outcome, Callable[[], ApiError]]] = {
    Outcome.KEY_REFUSED: partial(ApiError, 502, _KEY_REFUSED, code="worker_key_refused"),
    Outcome.UNDECODABLE: partial(ApiError, 502, _COMPRESSED),
}
"""Errors of attempts, whatever the last action was for."""
_OTHERS: Final[Mapping[Outcome, Callable[[], ApiError]]] = {
    Outcome.SILENT: partial(ApiError, 504, "The worker did not answer in time."),
    Outcome.CROWDED: partial(ApiError, 503, _CROWDED, headers=_RETRY_AFTER),
}
_NOT_RELAYED: Final = partial(ApiError, 502, "The worker's answer could not be relayed.")


def failure(outcome: Outcome, opened: AttemptResult) -> ApiError:
    """Return the error after ``outcome``, the last of any action; ``opened`` is what the last attempt brought."""
    for known in (opened.outcome, outcome):
        if known in _FIRST:
            return _FIRST[known]()
    if outcome is Outcome.UNREADABLE:
        return ApiError(500, "The worker's answer could not be read.")
    if outcome is Outcome.PREFILL_LOST and opened.outcome is not Outcome.SILENT:
        return ApiError(502, "No Prefill worker could be reached that computes the prompt.")
    return _OTHERS.get(opened.outcome, _NOT_RELAYED)()
