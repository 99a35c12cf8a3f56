"""Processes of a fleet that can be started, killed, hung and ended, and started again where they were."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

STOP_SECONDS: Final = 30.0


@dataclass(slots=True)
class Part:
    """One process of a fleet: ``python ARGUMENTS``. Its log goes on from life to life."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None)
    temporary: str = ""
    """Where it has its temporary files, which it leaves where it is killed."""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        self.temporary = tempfile.mkdtemp(prefix="cachefleet-")
        own = os.environ | {"TMPDIR": self.temporary} | dict(self.environment)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, *self.arguments], stdout=log, stderr=log, env=own)

    def kill(self) -> None:
        """SIGKILL; back once it is gone."""
        if self.process is not None:
            self.process.kill()
            self._wait()

    def end(self) -> None:
        """Ask it to end, as a kubelet does."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """End it, in the end by force."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.end()
        try:
            self._wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def _wait(self, seconds: float | None = None) -> None:
        """Until it is gone; then its temporary files are, too."""
        assert self.process is not None
        self.process.wait(seconds)
        shutil.rmtree(self.temporary, ignore_errors=True)

    @contextmanager
    def hung(self) -> Iterator[None]:
        """SIGSTOP: it keeps its connections and does nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    async def ended(self) -> bool:
        """Whether it is gone; a coroutine, as what is waited for is."""
        return not self.alive

    def seconds_used(self) -> float:
        """Of the processor, by all its threads."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def memory(self) -> int:
        """Resident bytes."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def descriptors(self) -> int:
        return int(psutil.Process(self.pid).num_fds())
