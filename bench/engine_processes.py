"""The processes of a running vLLM, and what CPU its API server takes until a request has reached the engine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from e2e.engine.vllm import VllmServer

_LOOK_SECONDS: Final = 0.001
_BUSY_SECONDS: Final = 0.003
"""Of the engine's main thread: more than any question besides a request takes, less than a step over a long prompt."""


@dataclass(frozen=True, slots=True)
class EngineProcesses:
    """The API server, which listens, and the engine core, its child."""

    api: int
    core: int

    def cpu(self) -> float:
        """User and system time of the API server so far; Linux tells it by thread, in nanoseconds."""
        tasks = Path(f"/proc/{self.api}/task").glob("*/schedstat")
        return sum(map(_seconds, tasks))

    @contextlib.contextmanager
    def spent(self) -> Iterator[Spent]:
        """What the API server spends while the block lasts; one request is asked meanwhile."""
        spent, ended = Spent(), threading.Event()
        before = self.cpu()
        watcher = threading.Thread(target=self._watch, args=(spent, before, ended))
        watcher.start()
        try:
            yield spent
        finally:
            ended.set()
            watcher.join()
            spent.whole = self.cpu() - before

    def _watch(self, spent: Spent, before: float, ended: threading.Event) -> None:
        """Look what has been spent as soon as the engine computes."""
        core = Path(f"/proc/{self.core}/schedstat")
        busy = _seconds(core) + _BUSY_SECONDS
        while not ended.wait(_LOOK_SECONDS):
            if _seconds(core) > busy:
                spent.to_engine = self.cpu() - before
                return


@dataclass(slots=True)
class Spent:
    """Seconds of CPU until the engine has the request, none where it was never seen to; and until the end."""

    to_engine: float = field(default=float("nan"))
    whole: float = 0.0


def engine_processes(server: VllmServer) -> EngineProcesses:
    """Those of a server with one engine. The core has inherited the listening socket."""
    port = int(server.url.rpartition(":")[2])
    sockets = [one for one in psutil.net_connections("tcp") if one.status == "LISTEN"]
    process = psutil.Process(next(one.pid for one in sockets if one.laddr and one.laddr.port == port))
    api = process.parent() if _is_core(process) else process
    assert api is not None
    (core,) = [child for child in api.children() if _is_core(child)]
    return EngineProcesses(api.pid, core.pid)


def _is_core(process: psutil.Process) -> bool:
    return process.name().startswith("VLLM::")


def _seconds(schedstat: Path) -> float:
    with contextlib.suppress(OSError):  # a thread has ended meanwhile
        return int(schedstat.read_text().split()[0]) / 1e9
    return 0.0
