"""Stands in for ``python -m vllm.entrypoints.openai.api_server``: has the engine forked and ends as it does.

Started by path with ``python -I -S``, so it imports the standard library only. Signals are forwarded to the engine,
its exit status is returned, and when this process dies the engine is killed with all processes below it. Any other
command line, and an environment that the fork server does not accept, runs in the ordinary interpreter.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final, NoReturn

MODULE: Final = "vllm.entrypoints.openai.api_server"
ACCEPTED: Final = b"accepted"
MAX_MESSAGE: Final = 1 << 20
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: list[str]) -> None:
    """``fork_client.py SOCKET PYTHON ARGUMENTS ...``: run ``PYTHON ARGUMENTS``, an engine as a fork."""
    path, python, *command = arguments
    if command[:2] == ["-m", MODULE]:
        # A signal between the engine's start and the word of it waits until it can be forwarded.
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            if _request_engine(connection, path, command[2:]):
                _end_as(_stand_in(connection))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    os.execv(python, [python, *command])  # noqa: S606 - the interpreter that was meant


def _request_engine(connection: socket.socket, path: str, arguments: list[str]) -> bool:
    """Whether the fork server accepts the engine."""
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "client": os.getpid(),
    }
    try:
        connection.connect(path)
        socket.send_fds(connection, [json.dumps(request).encode()], [1, 2])
        return connection.recv(MAX_MESSAGE) == ACCEPTED
    except OSError as error:
        sys.stderr.write(f"the fork server cannot be asked, vLLM starts by itself: {error}\n")
        return False


def _stand_in(connection: socket.socket) -> int:
    """Forward signals until no process of the engine is left; its exit status, -n after signal n."""
    for number in _FORWARDED:
        signal.signal(number, lambda number, _: connection.send(str(int(number)).encode()))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    status = connection.recv(MAX_MESSAGE)
    return int(status) if status else -signal.SIGKILL


def _end_as(status: int) -> NoReturn:
    """End this process with a status, or by signal n where it is -n."""
    if status < 0:
        if -status in _FORWARDED:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
