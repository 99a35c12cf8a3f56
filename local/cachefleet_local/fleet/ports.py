"""Finds free TCP ports on this machine: given ones must be free, others are chosen."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from cachefleet_local.fleet.port_promises import PortPromises, open_promises

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

    0 means any, outside the range of outgoing connections where possible, that is promised to nobody. All are held
    until the last is found, so they differ. They are free again on return: the process that listens has to do so soon.
    Meanwhile they are promised to this process, so no other one of this user chooses them.
    """
    with ExitStack() as held:
        promises = held.enter_context(open_promises())
        promises.clean()
        first_given = sorted(wanted.items(), key=lambda item: -item[1])
        return {name: _bound(held, promises, name, port) for name, port in first_given}


def _bound(held: ExitStack, promises: PortPromises, name: str, port: int) -> int:
    if port:
        given = _listening(held, name, port)
        promises.renew(given)
        return given
    # Claimed before it is bound: a promised port is not touched, its process may begin to listen right now.
    for chosen in filter(promises.claim, _CHANCE.sample(range(FIRST_CHOSEN, _first_ephemeral()), TRIES)):
        with suppress(PortError):
            return _listening(held, name, chosen)
    return _any_ephemeral(held, promises, name)


def _any_ephemeral(held: ExitStack, promises: PortPromises, name: str) -> int:
    for _ in range(TRIES):
        port = _listening(held, name, 0)
        if promises.claim(port):
            return port
    raise PortError(f"no port for the {name} is free")


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
