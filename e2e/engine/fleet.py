"""``cachefleet up`` as a person runs it, for tests: a process, what it printed, what its admin API says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import psutil

from e2e.engine.forks import engine_python, forked_for

T = TypeVar("T")

READY_SECONDS = 900.0
GONE_SECONDS = 300.0
"""As READY_SECONDS, ends a hang: what a stop takes depends on how busy the machine is."""
RECORD_SECONDS = 60.0
"""Until an answered request's record is there, which may be a moment after its last byte."""
PATIENCE = {"CACHEFLEET_RENDER_TIMEOUT_SECONDS": "60"}
"""No rung of the ladder is left because the machine is slow."""


@dataclass(frozen=True)
class Up:
    """A running ``cachefleet up``."""

    process: subprocess.Popen[bytes]
    folder: Path
    output: Path

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    @property
    def gateway(self) -> str:
        return str(self._addresses["gateway"])

    @property
    def internal(self) -> str:
        return str(self._addresses["internal"])

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return cachefleet(*arguments, "--data-dir", str(self.data_dir))

    def workers(self) -> list[dict[str, Any]]:
        return self.admin("workers")

    def admin(self, path: str) -> list[dict[str, Any]]:
        """A listing of the admin API; empty while nobody answers."""
        try:
            return list(self.document(path)["items"])
        except OSError:
            return []

    def document(self, path: str) -> dict[str, Any]:
        """An answer of the admin API. OSError while nobody answers."""
        token = (self.data_dir / "secrets" / "admin.token").read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{self.internal}/admin/v1/{path}", headers=headers)  # noqa: S310 - ours
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - ours
            return dict(json.load(answer))

    def decision(self, number: str) -> dict[str, Any]:
        """A request's record, by the id that its answer named; waits for it."""
        (found,) = until(lambda: self._records(number), RECORD_SECONDS, f"the record of {number}", self)
        return found

    def predicted(self, body: dict[str, Any]) -> int:
        """Tokens that the index promises for a request, which is not sent."""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.gateway}/v1/route", json.dumps(body).encode(), headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - ours
            return int(json.load(answer)["predicted_tokens"])

    def epoch(self, worker: str) -> str | None:
        """Which start of a worker's engine is known; None while none is."""
        return next((each["epoch"] for each in self.workers() if each["name"] == worker), None)

    def agents(self, worker: str) -> list[psutil.Process]:
        """The agents of a worker that run now: one, and none between its end and the next one's start."""
        found = []
        for agent in self.below("cachefleet_worker.agent"):
            with suppress(psutil.Error):  # it has ended just now
                if agent.environ().get("CACHEFLEET_WORKER") == worker:
                    found.append(agent)
        return found

    def engine(self, worker: str) -> psutil.Process:
        """The vLLM of a worker."""
        (port,) = [each["url"].rpartition(":")[2] for each in self.workers() if each["name"] == worker]
        (found,) = [engine for engine in self.below("vllm.entrypoints") if port in " ".join(engine.cmdline()).split()]
        return found

    def live(self, workers: int) -> bool:
        """So many are ready, and their reports come."""
        return len([each for each in self.workers() if each["ready"] and each["stream"] == "live"]) == workers

    def processes(self) -> list[psutil.Process]:
        """All of the fleet's: below its own process, and those of engines that were forked for it."""
        own = psutil.Process(self.process.pid).children(recursive=True)
        return own + forked_for(process.pid for process in own)

    def below(self, name: str) -> list[psutil.Process]:
        """Processes of the fleet with ``name`` on their command line, less those that only stand before another."""
        found = []
        for process in self.processes():
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if name in line and "guard.py" not in line and "fork_client.py" not in line:
                found.append(process)
        return found

    def _records(self, number: str) -> list[dict[str, Any]]:
        return [each for each in self.admin("decisions?limit=500") if each["id"] == number]

    @cached_property
    def _addresses(self) -> dict[str, object]:
        return dict(json.loads((self.data_dir / "fleet.json").read_text()))


def cachefleet(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cachefleet_local", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def start(pool_file: Path, folder: Path, *arguments: str, forked: bool = True) -> Up:
    """``cachefleet up``, whose engines are forks of the run's fork server unless told otherwise."""
    output = folder / "output.txt"
    engines = ["--engine-python", engine_python()] if forked else []
    options = ["--data-dir", str(folder / "data"), "--gateway-port", "0", "--internal-port", "0"]
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "cachefleet_local", "up", str(pool_file), *options, *engines, *arguments],
            stdout=out,
            stderr=out,
            env=os.environ | PATIENCE,
            start_new_session=True,
        )
    return Up(process, folder, output)


@contextmanager
def running_up(pool_file: Path, folder: Path, *arguments: str, forked: bool = True) -> Iterator[Up]:
    """A fleet from ready to stopped; that it stops cleanly and leaves no process is part of every use."""
    up = start(pool_file, folder, *arguments, forked=forked)
    try:
        until(lambda: "Ctrl-C stops" in up.output.read_text(), READY_SECONDS, "ready", up)
        yield up
        everything = up.processes()
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(GONE_SECONDS) == 0, up.output.read_text()
        # A forked engine is nobody's child below: its server ends it once it is told, which may be a moment later.
        until(lambda: all(map(is_gone, everything)), GONE_SECONDS, "everything gone")
    finally:
        up.process.kill()
        up.process.wait()


def until(condition: Callable[[], T], seconds: float, what: str, up: Up | None = None) -> T:
    """What a condition is once it is true of it; AssertionError with what the fleet printed where it does not come."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        said = up.output.read_text() if up else ""
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s\n{said}"
        assert up is None or up.process.poll() is None, f"cachefleet up has ended\n{said}"
        time.sleep(0.1)
    return found


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
