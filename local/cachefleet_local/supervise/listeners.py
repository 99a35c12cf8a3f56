"""Listening sockets that outlive the processes that serve them: clients wait while those are started again.

Processes of one port share its socket, and whichever comes first takes a connection. With a socket for each
(SO_REUSEPORT) Linux would choose one by the client's address, whether or not anybody serves it: connections would wait
in the queue of a process that has ended, or be reset with it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

LOOPBACK: Final = "127.0.0.1"
BACKLOG: Final = 2048


@contextmanager
def listeners(ports: Iterable[int]) -> Iterator[Mapping[int, socket.socket]]:
    """Listen at each port; the sockets by port.

    One that is taken is left out: the process opens it itself, and says why it cannot.
    """
    with ExitStack() as stack:
        found = {}
        for port in ports:
            with suppress(OSError):
                found[port] = stack.enter_context(_listening(port))
        yield found


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
