"""That something in a cluster has changed, told by watches: who waits for a state looks again then, and seldom else."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

SILENCE_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 0.2

_told = threading.Condition()
_count = 0


def count() -> int:
    """How many changes there were; to be read before one looks."""
    return _count


def wait(seen: int, seconds: float) -> None:
    """Until there was a change after the first ``seen``, or so long."""
    with _told:
        _told.wait_for(lambda: _count != seen, seconds)


def _tell() -> None:
    global _count  # noqa: PLW0603  # of all watches of this process
    with _told:
        _count += 1
        _told.notify_all()


@contextmanager
def followed(connect: Callable[[float], http.client.HTTPSConnection], paths: Sequence[str]) -> Iterator[None]:
    """Tell of every change of the objects of these paths while the block runs."""
    watches = [_Watch(connect, path) for path in paths]
    for watch in watches:
        watch.start()
    try:
        yield
    finally:
        for watch in watches:
            watch.stop()
        for watch in watches:
            watch.join()


class _Watch(threading.Thread):
    def __init__(self, connect: Callable[[float], http.client.HTTPSConnection], path: str) -> None:
        super().__init__(daemon=True)
        self._connect = connect
        self._path = path
        self._over = threading.Event()
        self._connection: http.client.HTTPSConnection | None = None

    def stop(self) -> None:
        self._over.set()
        if self._connection is not None and self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """A server that is away, or has no such kind, is asked again."""
        while not self._over.is_set():
            self._connection = self._connect(SILENCE_SECONDS)
            with contextlib.closing(self._connection), contextlib.suppress(OSError, http.client.HTTPException):
                self._follow(self._connection)
            _tell()
            self._over.wait(AGAIN_SECONDS)

    def _follow(self, connection: http.client.HTTPSConnection) -> None:
        connection.request("GET", f"/{self._path}?watch=true")
        with connection.getresponse() as response:
            while response.readline() and not self._over.is_set():
                _tell()
