"""``generate: false``: a request whose prompt is to be computed and kept in cache, without an answer. Pure.

The worker is asked for one token, which nobody sees: the response is complete without any output, and the next request
continues the input alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import NULL, READ_ERRORS, TRUE, Fields
from cachefleet_runtime.sse import event_data, event_name, is_end

GENERATE: Final = "generate"
_FALSE: Final = b"false"
_BEGINNINGS: Final = frozenset({b"response.created", b"response.queued", b"response.in_progress"})
_COMPLETE: Final[Mapping[str, Any]] = {"status": "completed", "incomplete_details": None, "output": []}

_any = msgspec.json.Decoder(dict[str, Any])
_encode = msgspec.json.Encoder().encode


def checked(fields: Fields) -> Fields:
    """Return a message's members, with ``generate`` only where it is false. ApiError 400."""
    given = bytes(fields.get(GENERATE, NULL))
    if given not in {bytes(NULL), bytes(TRUE), _FALSE}:
        raise ApiError(400, f"`{GENERATE}` must be true or false.", param=GENERATE)
    return fields if given == _FALSE else {name: raw for name, raw in fields.items() if name != GENERATE}


def is_warm_up(info: RequestInfo) -> bool:
    """Whether no answer is wanted."""
    return info.ask.member(GENERATE) is not None


def warming(info: RequestInfo) -> RequestInfo:
    """Return what a worker is asked instead: the same prompt, for one token."""
    fields = {"input": Raw(b"[]")} | info.fields | {"max_output_tokens": Raw(b"1")}
    del fields[GENERATE]
    return replace(info.with_fields(fields), max_tokens=1)


class WarmUpEvents:
    """The events of one such answer as its client gets them."""

    def __init__(self) -> None:
        self._told = 0

    def __call__(self, events: Iterable[bytes]) -> list[bytes]:
        """Return the beginnings and ends among events, the end without output; errors are kept."""
        kept = []
        for event in filter(_is_kept, events):
            kept.append(self._edited(event))
            self._told += 1
        return kept

    def _edited(self, event: bytes) -> bytes:
        if not is_end(event) or event_name(event) == b"response.failed":
            return event
        try:
            told = _any.decode(event_data(event))
            response = told["response"] | _COMPLETE
        except (*READ_ERRORS, KeyError, TypeError):
            return event
        told |= {"type": "response.completed", "response": response, "sequence_number": self._told}
        return b"event: response.completed\ndata: %b\n\n" % _encode(told)


def _is_kept(event: bytes) -> bool:
    name = event_name(event)
    return name in _BEGINNINGS or is_end(event) or not name.startswith(b"response.")
