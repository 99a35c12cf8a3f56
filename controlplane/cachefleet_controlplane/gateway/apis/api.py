"""The protocol of an API, and the streams and bodies that pass as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Protocol

from msgspec import Raw

from cachefleet_controlplane.gateway.apis.media import with_own_names
from cachefleet_controlplane.gateway.apis.request_info import Bypass, Endpoint, RequestInfo
from cachefleet_controlplane.gateway.upstream.answer import (
    Usage,
    error_message,
    in_openai_shape,
    read_usage,
    restate_size,
)
from cachefleet_controlplane.gateway.upstream.client import Answer
from cachefleet_controlplane.wire.errors import ApiError, error_body
from cachefleet_controlplane.wire.json_members import Fields, encode

_NO_WORDS: Final = "The worker refused the request."
_JSON: Final = (b"content-type", b"application/json")


class StreamTransformer(Protocol):
    """What becomes of one stream on its way to the client; fed whole events, in order."""

    usage: Usage | None
    """The last that was told; None where none was."""
    fingerprint: bytes | None
    """What the worker signs with (see ``answer.StreamFilter``); None where nothing is known of that."""
    sequence: int
    """The number of an event that would follow, where the API numbers its events."""

    def feed(self, event: bytes) -> bytes:
        """What goes to the client now."""
        ...

    def end(self) -> bytes:
        """What is still held back."""
        ...


class Api(Protocol):
    """One of the APIs that workers speak."""

    def understand(self, fields: Fields, *, model: str, size: int) -> RequestInfo:
        """Read a body, whose private members are out already. ApiError for what no worker is to be asked."""
        ...

    def prepare(self, fields: Fields, ask: RequestInfo, *, salt: str, gated: bool) -> None:
        """Add to what a worker is sent: the tenant's salt (may be ""), and what we want to know of its answer.

        ``gated``: the pool's workers refuse what their caches hold too little of. That is for a caller who asks for it.
        """
        ...

    def usage(self, body: bytes) -> Usage | None:
        """Of a whole answer; None where it has none."""
        ...

    def whole(self, ask: RequestInfo, answer: Answer, *, sent: int) -> Answer:
        """A whole answer, errors included, as the client asked for it; ``sent`` are the members of our body."""
        ...

    def transformer(self, ask: RequestInfo, fingerprint: bytes | None) -> StreamTransformer:
        """For the stream of a worker that signs with ``fingerprint``."""
        ...


_MEDIA_IN: Final = frozenset({"messages", "input"})


class PassingTransformer:
    """Lets every event through, and counts them."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.fingerprint: bytes | None = None
        self.sequence = 0

    def feed(self, event: bytes) -> bytes:
        self.sequence += 1
        return event

    def end(self) -> bytes:
        return b""


class PassingApi:
    """An API whose answers pass as they are; those that differ say so."""

    def prepare(self, fields: Fields, ask: RequestInfo, *, salt: str, gated: bool) -> None:  # noqa: ARG002 # as Api has it
        if not salt:
            return
        fields["cache_salt"] = Raw(encode(salt))
        for name in _MEDIA_IN & fields.keys():
            fields[name] = with_own_names(fields[name], salt=salt)

    def usage(self, body: bytes) -> Usage | None:
        return read_usage(body)

    def whole(self, ask: RequestInfo, answer: Answer, *, sent: int) -> Answer:
        """A refusal tells the size of the client's own body in place of ours; what has no API's shape gets ours."""
        if answer.status == 400:
            answer = replace(answer, body=restate_size(answer.body, sent=sent, asked=ask.size))
        foreign = answer.status >= 400 and not in_openai_shape(answer.body)
        return restated(ask.endpoint, answer) if foreign else answer

    def transformer(self, ask: RequestInfo, fingerprint: bytes | None) -> StreamTransformer:  # noqa: ARG002 # as Api has it
        return PassingTransformer()


def restated(endpoint: Endpoint, answer: Answer) -> Answer:
    """A worker's error in the shape of its endpoint, with the worker's words where it has any."""
    error = ApiError(answer.status, error_message(answer.body) or _NO_WORDS)
    headers = tuple(header for header in answer.headers if header[0] != b"content-type")
    return replace(answer, headers=(*headers, _JSON), body=error_body(endpoint, error))


def plain_ask(
    endpoint: Endpoint, fields: Fields, *, model: str, size: int, stream: bool, max_tokens: int, bypass: Bypass | None
) -> RequestInfo:
    """Of an API where nothing is asked for that the client does not get."""
    return RequestInfo(
        endpoint=endpoint,
        model=model,
        fields=fields,
        size=size,
        stream=stream,
        usage_asked=True,
        ids_asked=False,
        ids_wanted=False,
        single=True,
        max_tokens=max_tokens,
        bypass=bypass,
    )
