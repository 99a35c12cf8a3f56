"""What the APIs of all endpoints do with answers."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.request_info import POOLED, SPEECH, Endpoint, RequestInfo
from cachefleet_controlplane.gateway.send.answers.answer import (
    error_message,
    read_error,
    restate_size,
    restated_event,
)
from cachefleet_controlplane.gateway.send.answers.stream_filter import StreamFilter
from cachefleet_controlplane.gateway.send.answers.usage import Usage, read_usage
from cachefleet_controlplane.gateway.send.worker_answer import Answer
from cachefleet_controlplane.wire.errors import ApiError, error_body
from cachefleet_controlplane.wire.http_exchange import JSON

_NO_ROUTE: Final = "Not Found"
"""What FastAPI answers for a path that it does not have."""
_NO_WORDS: Final = "The worker refused the request."
_STREAMED_ERRORS: Final = (b"event: error", b'data: {"error"')


class Api:
    """The API of one endpoint: answers pass unchanged, errors in its own shape; subclasses override what differs."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def usage(self, body: bytes) -> Usage | None:
        """Return the usage of a whole answer; None where it has none."""
        return read_usage(body, self._endpoint)

    def whole(self, info: RequestInfo, answer: Answer, *, sent: int) -> Answer:
        """Return a whole answer, or an error, as the client asked for it; ``sent``: members of our body.

        An error gets the shape of its endpoint's API, a 400 the client's count of members.
        """
        if answer.status < 400:
            return _restated_stream(info.endpoint, answer) if answer.body.startswith(_STREAMED_ERRORS) else answer
        if answer.status == 400:
            answer = replace(answer, body=restate_size(answer.body, sent=sent, asked=info.size))
        unserved = answer.status == 404 and error_message(answer.body) == _NO_ROUTE
        return _restated(info.endpoint, answer, _unserved(info) if unserved else "")

    def transformer(self, info: RequestInfo, fingerprint: bytes | None) -> StreamFilter:
        """Return the filter of a stream of a worker with that system fingerprint."""
        return StreamFilter(
            self._endpoint,
            strip_usage=info.stream and not info.usage_asked,
            strip_ids=info.ids_wanted,
            single=info.single,
            fingerprint=fingerprint,
            echoes=info.sequences if info.echo else 0,
        )


def _unserved(info: RequestInfo) -> str:
    """What to say where workers have no such route: which they have depends on the model."""
    model = f"The model `{info.model}`" if info.model else "The model"
    if info.endpoint is Endpoint.EMBEDDINGS:
        return f"{model} has no embeddings: only pooling models have them (`--runner pooling`)."
    if info.endpoint in POOLED:
        return f"{model} has no {info.endpoint}: only pooling models have it that were trained for it."
    if info.endpoint in SPEECH:
        return f"{model} has no {info.endpoint}: only speech models have it, as Whisper."
    return f"{model} has no {info.endpoint}."


def _restated(endpoint: Endpoint, answer: Answer, words: str) -> Answer:
    """Return a worker's error in the shape of its endpoint, with ``words``, else the worker's message if any."""
    error = read_error(endpoint, answer.status, answer.body, words=_NO_WORDS)
    if words:
        error = ApiError(answer.status, words)
    headers = tuple(header for header in answer.headers if header[0] != b"content-type")
    return replace(answer, headers=(*headers, JSON), body=error_body(endpoint, error))


def _restated_stream(endpoint: Endpoint, answer: Answer) -> Answer:
    """Return a stream that begins with an error, and is a whole answer, in the shape of its endpoint."""
    first, end, rest = answer.body.partition(b"\n\n")
    return replace(answer, body=restated_event(endpoint, first + end) + rest)
