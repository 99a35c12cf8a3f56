"""Listening sockets that whoever started this process has opened for it, and keeps open when it ends.

``CACHEFLEET_SOCKETS`` has their descriptors, such as ``3,4``; each serves the port that it is bound to.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "CACHEFLEET_SOCKETS"


def inherited_sockets(environment: Mapping[str, str]) -> dict[int, socket.socket]:
    """Return each listening socket by its port. ValueError where one of the descriptors is none."""
    descriptors = environment.get(VARIABLE, "")
    try:
        sockets = [socket.socket(fileno=int(number)) for number in descriptors.split(",") if number]
        return {int(listener.getsockname()[1]): listener for listener in sockets}
    except (OSError, ValueError) as error:
        message = f"{VARIABLE}: got {descriptors!r}, allowed: descriptors of listening TCP sockets, as in '3,4'"
        raise ValueError(message) from error
