"""Listening sockets that outlive the process that serves them: clients wait while it is started again."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

LOOPBACK: Final = "127.0.0.1"
BACKLOG: Final = 2048


@contextmanager
def listeners(ports: Sequence[int]) -> Iterator[tuple[socket.socket, ...]]:
    """Listen at each port. One that is taken is left out: the process opens it itself, and says why it cannot."""
    with ExitStack() as stack:
        found = []
        for port in ports:
            with suppress(OSError):
                found.append(stack.enter_context(_listening(port)))
        yield tuple(found)


def _listening(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
