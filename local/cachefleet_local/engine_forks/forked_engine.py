"""One vLLM engine as a fork of the fork server, below a keeper process that kills all its processes at the end."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from cachefleet_local.engine_forks.fork_client import MAX_MESSAGE
from cachefleet_local.supervise import guard

_RESTORED: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Start:
    """How to start an engine; ``client`` is the asking process, ``output`` and ``errors`` are file descriptors."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    client: int
    output: int
    errors: int


def keep(start: Start, connection: socket.socket, run: Callable[[], None]) -> None:
    """Fork the engine, forward signals to it, and send its exit status once none of its processes is left.

    ``run`` is the engine's entry point, in its own process. When the client is gone, the engine is killed.
    """
    os.setsid()
    for number in _RESTORED:
        signal.signal(number, signal.SIG_DFL)
    guard.prctl(guard.SET_CHILD_SUBREAPER, 1)
    _title(keeper_title(start.client))
    keeper = os.getpid()
    engine = os.fork()
    if not engine:
        guard.prctl(guard.SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        connection.close()
        _engine(start, run) if os.getppid() == keeper else os._exit(1)
    status = _watched(engine, connection)
    guard.sweep(keeper)
    with contextlib.suppress(OSError):  # the client is gone
        connection.send(str(status).encode())


def keeper_title(client: int) -> str:
    """Process title of the keeper of the engine that the process ``client`` has asked for."""
    return f"cachefleet: keeps the engine of process {client}."


def _watched(engine: int, connection: socket.socket) -> int:
    """Wait for the engine's end and forward signals; its exit status, -n after signal n."""
    ended = os.pidfd_open(engine)
    watched = [ended, connection.fileno()]
    while ended not in select.select(watched, [], [])[0]:
        number = connection.recv(MAX_MESSAGE)
        os.kill(engine, int(number) if number else signal.SIGKILL)
        if not number:
            watched.remove(connection.fileno())
    return os.waitstatus_to_exitcode(os.waitpid(engine, 0)[1])


def _engine(start: Start, run: Callable[[], None]) -> NoReturn:
    """Run as the engine, and end as an interpreter of its own does."""
    status = 1
    try:
        _take_over(start)
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the interpreter's own last resort
        traceback.print_exc()
    finally:
        _leave(status)


def _leave(status: int) -> NoReturn:
    """End as an interpreter does; callers up the stack belong to the fork server and must not run."""
    threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001 - os._exit leaves it out
    atexit._run_exitfuncs()  # noqa: SLF001 - as above
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _take_over(start: Start) -> None:
    """Take the engine's command line, environment, folder and log in place of the fork server's."""
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor is wanted
        os.dup2(nothing.fileno(), 0)
    for given, own in ((start.output, 1), (start.errors, 2)):
        os.dup2(given, own)
        os.close(given)
    os.chdir(start.folder)
    added = [path for path in import_path(start.environment) if path not in sys.path]
    sys.path[:0] = added
    os.environ.clear()
    os.environ.update(start.environment)
    tempfile.tempdir = None  # that of the fork server
    sys.argv = ["api_server.py", *start.arguments]
    _title(" ".join([sys.executable, "-m", "vllm.entrypoints.openai.api_server", *start.arguments]))


def import_path(environment: Mapping[str, str]) -> list[str]:
    """The folders of PYTHONPATH."""
    return [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]


def _title(text: str) -> None:
    """Set the process title. The package comes with vLLM, which does without where it is missing."""
    with contextlib.suppress(ImportError):
        import setproctitle  # noqa: PLC0415 - as above

        setproctitle.setproctitle(text)
