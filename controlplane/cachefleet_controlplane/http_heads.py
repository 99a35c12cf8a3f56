"""uvicorn's HTTP protocol with a bound on each request's head: its bytes and its number of fields.

uvicorn and its parser take a head of any size, before anything knows who sends it. Here a head (or the trailer of a
chunked body) over MAX_HEAD_BYTES or MAX_HEAD_FIELDS is answered with 431, or cut off where an answer is under way.
A part that the parser only collects, such as one long value, counts while it arrives.

A head that others may read differently is a 400: one of HTTP/1.1 without a host or with several (RFC 9112, 3.2), and a
WebSocket's handshake that announces a body.
"""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEAD_FIELDS: Final = 100

_SEPARATORS: Final = len(b": \r\n")
_MESSAGE: Final = b"The request's head has more than %d bytes or %d fields.\n" % (MAX_HEAD_BYTES, MAX_HEAD_FIELDS)
_ANSWER: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\n"
    b"connection: close\r\n\r\n" % len(_MESSAGE)
) + _MESSAGE


class HeadTooLargeError(Exception):
    """A request's head is over its bounds; the parser's caller answers."""


class AmbiguousHeadError(Exception):
    """Two servers might read a request's head differently; the parser's caller answers 400."""


def _check(headers: list[tuple[bytes, bytes]], version: str) -> None:
    """AmbiguousHeadError; names are in lower case."""
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (not hosts and version == "1.1"):
        raise AmbiguousHeadError
    fields = dict(headers)
    bodied = b"transfer-encoding" in fields or fields.get(b"content-length", b"0") != b"0"
    if bodied and fields.get(b"upgrade", b"").lower() == b"websocket":
        raise AmbiguousHeadError


class BoundedHeads(HttpToolsProtocol):
    """Counts what the parser tells of a head, and what it was fed since it last told anything."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._head_fields = 0
        self._untold_bytes = 0
        self._head_refused = False

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless it was fed too much already."""
        if self._head_refused:
            return
        self._untold_bytes += len(data)
        super().data_received(data)
        if self._untold_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        """Count a new head."""
        self._head_bytes = self._head_fields = self._untold_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count a piece of the request's target."""
        self._told(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a field, of the head or of a trailer."""
        self._head_fields += 1
        self._told(len(name) + len(value) + _SEPARATORS)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """What follows is another part. AmbiguousHeadError."""
        self._untold_bytes = 0
        _check(self.headers, self.parser.get_http_version())
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A body's bytes count elsewhere."""
        self._untold_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The next byte begins another head."""
        self._untold_bytes = 0
        super().on_message_complete()

    def _told(self, size: int) -> None:
        self._untold_bytes = 0
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES or self._head_fields > MAX_HEAD_FIELDS:
            raise HeadTooLargeError

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refused: 431 where it was a head's size."""
        if self._head_bytes > MAX_HEAD_BYTES or self._head_fields > MAX_HEAD_FIELDS:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def _refuse_head(self) -> None:
        self._head_refused = True
        answering: RequestResponseCycle | None = self.cycle
        if answering is None or answering.response_complete:
            self.transport.write(_ANSWER)
            self.half_close()
        else:
            self.transport.close()

    def half_close(self) -> None:
        """End the connection after a last answer; overridden where the client may take time to read it."""
        self.transport.close()
