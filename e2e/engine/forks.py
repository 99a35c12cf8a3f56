"""The fork server that all engines of a test run share: vLLM is imported once, and an engine is there in seconds."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import psutil

from cachefleet_local.engine_forks.fork_server import fork_server
from cachefleet_local.engine_forks.forked_engine import keeper_title


@cache
def engine_python() -> str:
    """What to start engines with in place of Python; the first call starts the server, which ends with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cachefleet-engines-")))
    return str(stack.enter_context(fork_server(folder / "fork_server.log")))


def forked_for(clients: Iterable[int]) -> list[psutil.Process]:
    """The processes of engines that were forked for these processes, each below a keeper of its own."""
    titles = tuple(keeper_title(client) for client in clients)
    keepers = [process for process in psutil.process_iter() if _line(process).startswith(titles)] if titles else []
    return [process for keeper in keepers for process in (keeper, *keeper.children(recursive=True))]


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
