"""A control plane, workers and their agents as processes of their own, for benchmarks."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cachefleet_core.tenancy import FleetKey, fleet_index_key
from cachefleet_local.fleet.ports import take_ports

POOL: Final = "default/bench"
WORKER: Final = "bench-0"
START_SECONDS: Final = 60.0
CONTROL_PLANE: Final = ("-m", "cachefleet_controlplane")
_STOP_SECONDS: Final = 10.0

_POOL_FILE: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {{name: bench}}
spec:
  model: {{name: {model}, source: bench, weightsMiB: 1}}
  engine: {{image: bench, blockSize: {block_size}, maxModelLen: {max_model_len}, dtype: float32}}
  device: {{resource: "{resource}", memoryMiB: 8192, activationMiB: 1024, floorMiB: 1024}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A running engine, fake or real."""

    url: str
    events: str
    replay: str
    model: str
    block_size: int
    max_model_len: int
    resource: str


@dataclass(frozen=True, slots=True)
class Running:
    """Where the control plane answers, and its process."""

    gateway: str
    internal: str
    pid: int


def cores(wanted: int) -> list[set[int]]:
    """A core each for so many processes where there are enough, else the last ones share."""
    free = sorted(os.sched_getaffinity(0))
    return [{free[min(i, len(free) - 1)]} for i in range(wanted)]


@contextlib.contextmanager
def process(
    arguments: Sequence[str],
    *,
    log: Path,
    core: set[int],
    environment: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> Iterator[subprocess.Popen[bytes]]:
    """``python ARGUMENTS``, on ``core``; ended with the block."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            [python, *arguments], stdout=output, stderr=output, env={**os.environ, **(environment or {})}
        )
        os.sched_setaffinity(started.pid, core)
        try:
            yield started
        finally:
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


@contextlib.contextmanager
def fake_engine(folder: Path, key: str, *, core: set[int], **changes: object) -> Iterator[Engine]:
    """A fake engine that computes in no time; ``changes`` are further fields of its EngineOptions."""
    model, block_size, max_model_len = "bench", 16, 16_384
    log = folder / "engine.log"
    options = {
        "model": model,
        "api-key": key,
        "block-size": block_size,
        "num-blocks": 4096,
        "max-model-len": max_model_len,
        "remembered-requests": 1,
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    flags = [_flag(name, option) for name, option in options.items()]
    with process(["-m", "tests.fakes.engine", *flags], log=log, core=core) as started:
        ready = json.loads(_first_line(log, started))
        yield Engine(
            url=ready["url"],
            events=ready["events"],
            replay=ready["replay"],
            model=model,
            block_size=block_size,
            max_model_len=max_model_len,
            resource="nvidia.com/gpu",
        )


def _flag(name: str, option: object) -> str:
    """An option of the fake engine's command line, as ``tests.fakes.process`` reads it."""
    if isinstance(option, bool):
        return f"--{name}" if option else f"--no-{name}"
    text = base64.b64encode(option).decode() if isinstance(option, bytes) else option
    return f"--{name}={text}"  # a key may begin with a dash


@contextlib.contextmanager
def control_plane(
    folder: Path,
    key: FleetKey,
    engine: Engine,
    *,
    core: set[int],
    agent_core: set[int],
    workers: int = 1,
    **settings: str,
) -> Iterator[Running]:
    """The control plane on a core of its own, and the agent beside the engine; ``settings`` as for ``plane``.

    The engine is so many ``workers`` to it, of which WORKER alone has an agent.
    """
    with (
        plane(folder, key, fleet(engine, workers), core=core, patience=START_SECONDS, **settings) as running,
        process(
            ["-m", "cachefleet_worker.agent"],
            log=folder / "agent.log",
            core=agent_core,
            environment=agent_environment(folder, running, WORKER, engine),
        ),
    ):
        yield running


def fleet(engine: Engine, workers: int) -> dict[str, Engine]:
    """One engine as so many workers, by their names; the first is WORKER."""
    return {f"{WORKER.rpartition('-')[0]}-{number}": engine for number in range(workers)}


@contextlib.contextmanager
def plane(
    folder: Path,
    key: FleetKey,
    engines: Mapping[str, Engine],
    *,
    core: set[int],
    spec: Sequence[str] = (),
    command: Sequence[str] = CONTROL_PLANE,
    until: str = "ready",
    patience: float = START_SECONDS,
    **settings: str,
) -> Iterator[Running]:
    """The control plane alone, before workers of these names; ``settings`` of its own, as in ``knowledge="load"``.

    ``spec`` are further lines of the pool's; ``command`` runs it in Python. It is waited for ``until`` it is "ready",
    or only "listening", ``patience`` seconds at most.
    """
    ports = take_ports({"gateway": 0, "internal": 0})
    write_files(folder, key, engines, spec)
    own = {f"CACHEFLEET_{name.upper()}": value for name, value in settings.items()}
    with process(
        command,
        log=folder / "controlplane.log",
        core=core,
        environment=control_plane_environment(folder, ports) | own,
    ) as started:
        running = Running(f"http://127.0.0.1:{ports['gateway']}", f"http://127.0.0.1:{ports['internal']}", started.pid)
        ready, log = until == "ready", folder / "controlplane.log"
        _wait(f"{running.internal}/readyz", started, log, ready=ready, patience=patience)
        yield running


def write_files(folder: Path, key: FleetKey, engines: Mapping[str, Engine], spec: Sequence[str] = ()) -> None:
    """The files that a control plane before these engines and their agents read."""
    engine = next(iter(engines.values()))
    endpoints = [{"name": name, "url": one.url, "ready": True} for name, one in engines.items()]
    pool = _POOL_FILE.format(
        model=engine.model, block_size=engine.block_size, max_model_len=engine.max_model_len, resource=engine.resource
    )
    files = {
        "pool.yaml": pool + "".join(f"  {line}\n" for line in spec),
        "endpoints.json": json.dumps({POOL: endpoints}),
        "fleet.key": key.format(),
        "index.key": base64.urlsafe_b64encode(fleet_index_key(key.index_key, "default", engine.model)).decode(),
        "worker.key": key.worker_key(POOL),
        "reports.token": "reports",
        "admin.token": "admin",
    }
    for name, content in files.items():
        (folder / name).write_text(content)


def control_plane_environment(folder: Path, ports: Mapping[str, int]) -> dict[str, str]:
    """The variables that name those files, and the ports "gateway" and "internal"."""
    return {
        "CACHEFLEET_GATEWAY_PORT": str(ports["gateway"]),
        "CACHEFLEET_INTERNAL_PORT": str(ports["internal"]),
        "CACHEFLEET_POOL_FILE": str(folder / "pool.yaml"),
        "CACHEFLEET_ENDPOINTS_FILE": str(folder / "endpoints.json"),
        "CACHEFLEET_FLEET_KEY_FILE": str(folder / "fleet.key"),
        "CACHEFLEET_REPORTS_TOKEN_FILE": str(folder / "reports.token"),
        "CACHEFLEET_ADMIN_TOKEN_FILE": str(folder / "admin.token"),
        "CACHEFLEET_DATA_DIR": str(folder / "data"),
        "CACHEFLEET_WITHDRAW_SECONDS": "0",
        "CACHEFLEET_STARTUP_SECONDS": "0",
    }


def agent_environment(folder: Path, running: Running, worker: str, engine: Engine) -> dict[str, str]:
    """What an agent is told; its own port is any that is free."""
    return {
        "CACHEFLEET_WORKER": worker,
        "CACHEFLEET_POOL": POOL,
        "CACHEFLEET_ENGINE_URL": engine.url,
        "CACHEFLEET_EVENTS_ENDPOINT": engine.events,
        "CACHEFLEET_REPLAY_ENDPOINT": engine.replay,
        "CACHEFLEET_CONTROL_PLANES": running.internal.replace("http", "ws", 1),
        "CACHEFLEET_TOKEN_FILE": str(folder / "reports.token"),
        "CACHEFLEET_INDEX_KEY_FILE": str(folder / "index.key"),
        "CACHEFLEET_WORKER_KEY_FILE": str(folder / "worker.key"),
        "CACHEFLEET_WEIGHTS": "bench",
        "CACHEFLEET_HTTP_HOST": "127.0.0.1",
        "CACHEFLEET_HTTP_PORT": "0",
    }


def _first_line(log: Path, started: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and started.poll() is None:
        lines = log.read_text().splitlines(keepends=True)
        said = [line for line in lines if line.startswith("{") and line.endswith("\n")]  # and no warning before it
        if said:
            return said[0]
        time.sleep(0.02)
    raise RuntimeError(f"the engine did not start: {log.read_text()[-2000:]}")


def status_of(url: str) -> int:
    """The HTTP status of an address of our own; 0 where nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own address
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _wait(url: str, started: subprocess.Popen[bytes], log: Path, *, ready: bool, patience: float) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and started.poll() is None:
        status = status_of(url)
        if status == 200 or (status and not ready):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the control plane did not start: {log.read_text()[-2000:]}")
