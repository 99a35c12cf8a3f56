"""A relay of TCP connections that counts the bytes that go to the server, heads and bodies, as they are on the wire."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

_PIECE: Final = 1 << 18


class Relay:
    """Before one server, on a port of its own; ``sent`` is the number of bytes that it was sent so far."""

    def __init__(self, server: str) -> None:
        address = urlsplit(server)
        self._server = (str(address.hostname), address.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[Relay]:
        """Accepts from now on; ends with the block."""
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            yield self
        finally:
            self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                self._join(client)

    def _join(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._server)
        except OSError:
            client.close()
            return
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._pass_on, args=(client, server), kwargs={"counted": True}, daemon=True).start()
        threading.Thread(target=self._pass_on, args=(server, client), kwargs={"counted": False}, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, *, counted: bool) -> None:
        """Until either side ends; then both have ended."""
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                if counted:
                    self.sent += len(piece)
                target.sendall(piece)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
