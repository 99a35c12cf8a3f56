"""Finds free TCP ports on this machine: given ones must be free, others are chosen."""

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
"""Range of ports for outgoing connections. They are avoided: one may be taken while a worker restarts."""
_CHANCE: Final = random.SystemRandom()
"""Not Python's default generator: two processes that seed it alike would choose the same ports."""


class PortError(Exception):
    """A port that cannot be used; the message names it and its purpose."""


def take_ports(wanted: Mapping[str, int]) -> dict[str, int]:
    """A free port for each name. PortError where a given one is taken.

    0 means any, outside the range of outgoing connections where possible. All are held until the last is found, so
    they differ. They are free again on return: the process that listens has to do so soon.
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
    """First port for outgoing connections; at least ``TRIES`` above ``FIRST_CHOSEN``, so that there is a choice."""
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
