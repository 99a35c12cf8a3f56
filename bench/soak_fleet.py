"""Workers that die and return: a fake engine and the real agent beside it, as processes that can be killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.parts import POOL, Engine, Running, agent_environment
from cachefleet_core.tenancy import FleetKey
from cachefleet_local.fleet.ports import take_ports

MODEL: Final = "bench"
MAX_MODEL_LEN: Final = 8192
OPTIONS: Final = {
    "model": MODEL,
    "block-size": 16,
    "num-blocks": 1024,
    "max-model-len": MAX_MODEL_LEN,
    "prefill-tokens-per-second": 100_000,
    "inter-token-seconds": 0.004,
    "natural-tokens": 1024,
    "remembered-requests": 1,
}
_STOP_SECONDS: Final = 5.0


@dataclass(slots=True)
class SoakWorker:
    """One worker: its engine keeps its address from life to life."""

    name: str
    folder: Path
    engine: Engine
    ports: dict[str, int]
    key: str
    lives: int = 0
    deaths: list[float] = field(default_factory=list)
    """When it was killed, on the monotonic clock."""
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        return "engine" in self._processes

    def start(self, running: Running | None) -> None:
        """Start what does not run; the agent only where there is a control plane to report to."""
        if "engine" not in self._processes:
            flags = {**OPTIONS, **self.ports, "api-key": self.key}
            arguments = [f"--{name}={value}" for name, value in flags.items()]  # a key may begin with a dash
            self._processes["engine"] = self._spawn("engine", ["-m", "tests.fakes.engine", *arguments], {})
            self.lives += 1
        if running is not None and "agent" not in self._processes:
            told = agent_environment(self.folder, running, self.name, self.engine)
            self._processes["agent"] = self._spawn("agent", ["-m", "cachefleet_worker.agent"], told)

    def kill(self, *, agent: bool) -> None:
        """SIGKILL to the engine, and to its agent as well where its whole pod dies."""
        self.deaths.append(time.monotonic())
        for name in ("engine", "agent") if agent else ("engine",):
            process = self._processes.pop(name, None)
            if process is not None:
                process.kill()
                process.wait()

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            process.kill()
            process.wait()
        self._processes.clear()

    def died_within(self, began: float, ended: float) -> bool:
        return any(began <= death <= ended for death in self.deaths)

    def _spawn(self, what: str, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{self.name}-{what}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log, env=os.environ | environment)


@contextlib.contextmanager
def workers(folder: Path, key: FleetKey, *, count: int) -> Iterator[dict[str, SoakWorker]]:
    """Workers by name, with engines that run and no agents yet; all ended with the block."""
    made = {f"soak-{number}": _worker(f"soak-{number}", folder, key) for number in range(count)}
    try:
        for worker in made.values():
            worker.start(None)
        yield made
    finally:
        for worker in made.values():
            worker.stop()


def _worker(name: str, folder: Path, key: FleetKey) -> SoakWorker:
    ports = take_ports({"port": 0, "events-port": 0, "replay-port": 0})
    engine = Engine(
        url=f"http://127.0.0.1:{ports['port']}",
        events=f"tcp://127.0.0.1:{ports['events-port']}",
        replay=f"tcp://127.0.0.1:{ports['replay-port']}",
        model=MODEL,
        block_size=16,
        max_model_len=MAX_MODEL_LEN,
        resource="nvidia.com/gpu",
    )
    return SoakWorker(name, folder, engine, ports, key.worker_key(POOL))
