"""The proxies that are compared: ours, and three routers as their packages are published."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.index_sides import PEERS
from bench.parts import CONTROL_PLANE, Engine, plane, process
from bench.proxies_engine import MODEL
from cachefleet_core.tenancy import FleetKey
from cachefleet_local.fleet.ports import take_ports

OURS: Final = "cachefleet"
START_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A published router, and how it is started.

    ``whole`` and ``streamed`` are how many times its requests per second of CPU ours are to be.
    """

    package: str
    version: str
    command: Sequence[str]
    """What Python runs."""
    whole: float
    streamed: float

    @property
    def name(self) -> str:
        return f"{self.package} {self.version}"

    def bar(self, *, stream: bool) -> float:
        """How many times its requests per second of CPU ours are to be."""
        return self.streamed if stream else self.whole


PEER_ROUTERS: Final = (
    Peer("sglang-router", "0.3.2", ("-m", "sglang_router.launch_router"), whole=1.0, streamed=1.0),
    Peer("vllm-router", "0.1.17", ("-m", "vllm_router.launch_router"), whole=1.0, streamed=1.0),
    Peer("smg", "1.13.0", ("-m", "smg.cli", "launch"), whole=1.3, streamed=1.0),
)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running one."""

    name: str
    url: str
    pid: int


@contextlib.contextmanager
def ours(
    folder: Path,
    workers: Sequence[str],
    *,
    core: set[int],
    name: str = OURS,
    command: Sequence[str] = CONTROL_PLANE,
    patience: float = START_SECONDS,
    **settings: str,
) -> Iterator[Proxy]:
    """The control plane on the approximate rung, before workers without agents; ``command``, ``patience`` and
    ``settings`` as for ``plane``. Its files are in ``folder``, below its ``name``.
    """
    folder = folder / name
    folder.mkdir()
    engines = {f"bench-{number}": _engine(url) for number, url in enumerate(workers)}
    with plane(
        folder,
        FleetKey.generate(),
        engines,
        core=core,
        command=command,
        patience=patience,
        knowledge="approximate",
        **settings,
    ) as running:
        yield Proxy(name, running.gateway, running.pid)


@contextlib.contextmanager
def routed(peer: Peer, folder: Path, workers: Sequence[str], *, core: set[int]) -> Iterator[Proxy]:
    """A peer in its cache-aware mode, with all else as it comes, but for logs."""
    ports = take_ports({"router": 0, "metrics": 0})
    port, metrics, log = ports["router"], ports["metrics"], folder / f"{peer.package}.log"
    arguments = ["--worker-urls", *workers, "--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware"]
    arguments += ["--prometheus-port", str(metrics), "--prometheus-host", "127.0.0.1", "--log-level", "error"]
    arguments += ["--worker-startup-check-interval", "1"]
    python, environment = str(installed(peer)), {"PYTHONPATH": "", "RUST_LOG": "error"}
    with process([*peer.command, *arguments], log=log, core=core, environment=environment, python=python) as started:
        url = f"http://127.0.0.1:{port}"
        _wait(url, len(workers), started, log)
        yield Proxy(peer.name, url, started.pid)


def installed(peer: Peer) -> Path:
    """The Python of the virtual environment that has it; made the first time, outside the repository."""
    folder = PEERS / f"{peer.package}-{peer.version}"
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        print(f"installing {peer.package} into a cache folder of its own", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"{peer.package}=={peer.version}"], check=True)
        (folder / ".installed").touch()
    return python


def _engine(url: str) -> Engine:
    return Engine(
        url=url, events="", replay="", model=MODEL, block_size=16, max_model_len=131_072, resource="nvidia.com/gpu"
    )


def _wait(url: str, workers: int, started: subprocess.Popen[bytes], log: Path) -> None:
    """Until every worker is taken into service: a router with fewer would be compared on other work."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and started.poll() is None:
        if _healthy_workers(url) >= workers:
            return
        time.sleep(0.1)
    raise RuntimeError(f"the router did not start: {log.read_text()[-2000:]}")


def _healthy_workers(url: str) -> int:
    with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(f"{url}/workers", timeout=1) as answer:  # noqa: S310 - our own address
        return sum(worker["is_healthy"] for worker in json.loads(answer.read())["workers"])
    return 0
