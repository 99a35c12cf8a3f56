"""TCP ports of this machine: those asked for must be free, others are chosen."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
FIRST_CHOSEN: Final = 10_240
TRIES: Final = 100
EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Its first number begins the ports of outgoing connections: one of them may be taken while a worker restarts."""
_CHANCE: Final = random.SystemRandom()
"""Whoever seeds Python's own alike, in two processes, would have both choose alike."""


class PortError(Exception):
    """A port that cannot be had; the message names it and what it was for."""


def take_ports(wanted: Mapping[str, int]) -> dict[str, int]:
    """A free port for each name. PortError where one asked for cannot be had.

    0 means any, none of those of outgoing connections where possible. All are held until the last is found, so they
    differ. They are free again on return: whoever is to listen has to do so soon.
    """
    with ExitStack() as held:
        return {name: _bound(held, name, port) for name, port in sorted(wanted.items(), key=lambda item: -item[1])}


def _bound(held: ExitStack, name: str, port: int) -> int:
    if port:
        return _listening(held, name, port)
    for chosen in _CHANCE.sample(range(FIRST_CHOSEN, _first_ephemeral()), TRIES):
        with suppress(PortError):
            return _listening(held, name, chosen)
    return _listening(held, name, 0)


def _first_ephemeral() -> int:
    """At least so far above ``FIRST_CHOSEN`` that there is a choice."""
    try:
        return max(int(EPHEMERAL.read_text().split()[0]), FIRST_CHOSEN + TRIES)
    except OSError:
        return 32_768


def _listening(held: ExitStack, name: str, port: int) -> int:
    listener = held.enter_context(socket.socket())
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
    try:
        listener.bind((LOOPBACK, port))
        listener.listen(1)
    except OSError as error:
        why = "is taken by another process" if error.errno == errno.EADDRINUSE else str(error.strerror)
        raise PortError(f"port {port} for the {name} {why}") from error
    return int(listener.getsockname()[1])
