"""The protocol of an API, and the base of APIs whose streams and bodies pass unchanged."""

from __future__ import annotations

from typing import ClassVar, Final, Protocol

import cachefleet_native
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.gateway.send.answers.answer import (
    error_message,
    read_error,
    read_usage,
    restate_size,
    restated_event,
)
from cachefleet_controlplane.gateway.send.answers.passes import Passes
from cachefleet_controlplane.gateway.send.answers.usage import Usage
from cachefleet_controlplane.gateway.send.worker_answer import Answer
from cachefleet_controlplane.wire.errors import ApiError, error_body
from cachefleet_controlplane.wire.http_exchange import JSON

_NO_ROUTE: Final = "Not Found"
"""What FastAPI answers for a path that it does not have."""
_NO_WORDS: Final = "The worker refused the request."
_STREAMED_ERRORS: Final = (b"event: error", b'data: {"error"')


class StreamTransformer(Protocol):
    """Turns one stream of a worker into the client's; fed whole events, in order."""

    @property
    def passes(self) -> Passes:
        """What need not be fed: native code then feeds it to ``native``."""
        ...

    @property
    def native(self) -> cachefleet_native.StreamFilter | None:
        """The filter that native code relays the stream through; None where it passes nothing."""
        ...

    @property
    def usage(self) -> Usage | None:
        """The usage that came at the stream's end; None before it."""
        ...

    @property
    def fingerprint(self) -> bytes | None:
        """The worker's system fingerprint (see ``StreamFilter``); None where it is not known."""
        ...

    @property
    def sequence(self) -> int:
        """Number of the next event, where the API numbers its events."""
        ...

    def omit_zeros(self, *, omit: bool) -> None:
        """Set whether counts of cached tokens that are 0 are left out (``hit.omitZeroCachedTokens``)."""
        ...

    def so_far(self, *, prompts: int, choices: int, known_prompt: int) -> Usage:
        """The usage as far as it is known before the stream's end; ``known_prompt``: where the worker told no more."""
        ...

    def feed(self, event: bytes) -> bytes:
        """Return the bytes to send to the client now."""
        ...

    def end(self) -> bytes:
        """Return what is still held back."""
        ...


class Api(Protocol):
    """One of the APIs that clients and workers speak."""

    def usage(self, body: bytes) -> Usage | None:
        """Return the usage of a whole answer; None where it has none."""
        ...

    def whole(self, info: RequestInfo, answer: Answer, *, sent: int) -> Answer:
        """Return a whole answer, or an error, as the client asked for it; ``sent``: members of our body."""
        ...

    def transformer(self, info: RequestInfo, fingerprint: bytes | None) -> StreamTransformer:
        """Return a transformer for the stream of a worker with that system fingerprint."""
        ...


class PassingTransformer:
    """Passes events unchanged, but for errors, which get the shape of the API; counts them."""

    passes: ClassVar = Passes.NOTHING
    native: ClassVar = None
    fingerprint: ClassVar = None

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._omits_zeros = False
        self.usage: Usage | None = None
        self.begun: Usage | None = None
        """The counts with which the stream begins."""
        self.produced = 0
        """Tokens so far, at least: the engine may have produced more than it has sent."""
        self.sequence = 0

    def omit_zeros(self, *, omit: bool) -> None:
        self._omits_zeros = omit

    def feed(self, event: bytes) -> bytes:
        passed = restated_event(self._endpoint, event, sequence=self.sequence)
        self.sequence += 1
        return cachefleet_native.without_zero_counts(passed) if self._omits_zeros else passed

    def end(self) -> bytes:
        return b""

    def so_far(self, *, prompts: int, choices: int, known_prompt: int) -> Usage:  # noqa: ARG002 # as StreamTransformer
        begun = self.begun or Usage()
        produced = max(self.produced, begun.completion_tokens or 0)
        return Usage(begun.prompt_tokens or known_prompt, produced, begun.cached_tokens)


class PassingApi:
    """Base of the APIs: answers pass unchanged, errors in the API's own shape; subclasses override what differs."""

    def usage(self, body: bytes) -> Usage | None:
        return read_usage(body)

    def whole(self, info: RequestInfo, answer: Answer, *, sent: int) -> Answer:
        """An error gets the shape of its endpoint's API, a 400 the client's count of members."""
        if answer.status < 400:
            return _restated_stream(info.endpoint, answer) if answer.body.startswith(_STREAMED_ERRORS) else answer
        if answer.status == 400:
            answer = replace(answer, body=restate_size(answer.body, sent=sent, asked=info.size))
        unserved = answer.status == 404 and error_message(answer.body) == _NO_ROUTE
        return _restated(info.endpoint, answer, _unserved(info) if unserved else "")

    def transformer(self, info: RequestInfo, fingerprint: bytes | None) -> StreamTransformer:  # noqa: ARG002 # as Api
        return PassingTransformer(info.endpoint)


def _unserved(info: RequestInfo) -> str:
    """What to say where workers have no such route: which they have depends on the model."""
    model = f"The model `{info.model}`" if info.model else "The model"
    if info.endpoint is Endpoint.EMBEDDINGS:
        return f"{model} has no embeddings: only pooling models have them (`--runner pooling`)."
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
