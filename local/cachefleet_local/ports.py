"""TCP ports of this machine: those asked for must be free, others are chosen."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

LOOPBACK: Final = "127.0.0.1"


class PortError(Exception):
    """A port that cannot be had; the message names it and what it was for."""


def take_ports(wanted: Mapping[str, int]) -> dict[str, int]:
    """A free port for each name; 0 means any. PortError where one asked for cannot be had.

    All are held until the last is found, so they differ. They are free again on return: whoever is to listen has to
    do so soon.
    """
    with ExitStack() as held:
        return {name: _bound(held, name, port) for name, port in sorted(wanted.items(), key=lambda item: -item[1])}


def _bound(held: ExitStack, name: str, port: int) -> int:
    listener = held.enter_context(socket.socket())
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
    try:
        listener.bind((LOOPBACK, port))
        listener.listen(1)
    except OSError as error:
        why = "is taken by another process" if error.errno == errno.EADDRINUSE else str(error.strerror)
        raise PortError(f"port {port} for the {name} {why}") from error
    return int(listener.getsockname()[1])
