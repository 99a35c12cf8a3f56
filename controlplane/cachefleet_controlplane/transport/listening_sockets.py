"""Opens the sockets that a server listens on, and says where it never did."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Final

BACKLOG: Final = 2048
START_SECONDS: Final = 30.0
"""How long a server may take until it listens."""
_NOT_HERE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""A machine without IPv6 still names its addresses."""


class NeverListenedError(RuntimeError):
    """A server ended before it listened: its port cannot be opened, or it was stopped."""

    def __init__(self) -> None:
        super().__init__("the server stopped before it listened")


async def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """One socket for each address of ``host`` that this machine has, all with one port. OSError.

    ``::`` is every address of both families.
    """
    kind, passive = socket.SOCK_STREAM, socket.AI_PASSIVE
    resolved = await asyncio.get_running_loop().getaddrinfo(
        None if host in {"", "::"} else host, port, type=kind, flags=passive
    )
    addresses = list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in resolved))
    opened: list[socket.socket] = []
    problem = OSError(errno.EADDRNOTAVAIL, f"{host} is no address of this machine")
    try:
        for family, address in addresses:
            try:
                opened.append(_open(family, address, port or (opened[0].getsockname()[1] if opened else 0)))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                problem = error
    except OSError:
        for listener in opened:
            listener.close()
        raise
    if not opened:
        raise problem
    return opened


def _open(family: int, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
