"""uvicorn's WebSocket protocol that can refuse a handshake quietly, and one with a smaller bound on the first message.

Whoever connects is not trusted yet when its first message comes, and uvicorn reads that message before the application
asks for it. A larger one ends the connection with code 1009 at its head, before its bytes are kept.
"""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State

_DATA: Final = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})

FIRST_MESSAGE_BYTES: Final = 128 * 1024


class RefusingWebSocket(WebSocketsSansIOProtocol):
    """The protocol; a handshake that is answered with an HTTP error is no error of the application."""

    async def send(self, message: Any) -> None:
        """Send; after an HTTP answer in place of the handshake uvicorn would log that there was none."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True

    def shutdown(self) -> None:
        """The server stops; where the client has begun to close, uvicorn would raise."""
        if self.handshake_complete and self.conn.state is not State.OPEN:
            self.transport.close()
        else:
            super().shutdown()


class CautiousWebSocket(RefusingWebSocket):
    """The protocol: FIRST_MESSAGE_BYTES bound a connection's first message, uvicorn's ``ws_max_size`` later ones."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._later_bytes = self.conn.max_message_size
        self.conn.max_message_size = FIRST_MESSAGE_BYTES
        self._recv_frame = self.conn.recv_frame
        # Not where messages are handled: several of them may be parsed from one read before the first is handled.
        self.conn.recv_frame = self._first_frame  # type: ignore[method-assign]

    def _first_frame(self, frame: Frame) -> None:
        self._recv_frame(frame)
        if frame.opcode in _DATA and frame.fin:
            self.conn.max_message_size = self._later_bytes
            self.conn.recv_frame = self._recv_frame  # type: ignore[method-assign]
