"""Real vLLM on CPU for tests: started with a tiny model, stopped with everything below it."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cachefleet_core.engine import engine_arguments
from cachefleet_core.engine.executors import IN_PROCESS
from cachefleet_local.fleet.port_promises import open_promises
from cachefleet_local.fleet.ports import take_ports
from cachefleet_local.supervise import guard
from e2e.engine import faulty
from e2e.engine.forks import engine_python
from e2e.engine.versions import import_path

ROOT: Final = Path(__file__).parents[2]
START_SECONDS: Final = 900.0
"""Imports alone take 10 to 30 s on two cores, more when other tests run."""
STOP_SECONDS: Final = 15.0
MAX_RANKS: Final = 8
LOG_TAIL: Final = 6000
INDEX_KEY: Final = bytes(range(32))
"""What the plugin of a test engine seeds block keys with."""

ENVIRONMENT: Final = {
    # Without these two several engines fight for, or pin themselves to, the same cores.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_COMPILE_DISABLE": "1",  # as in engines of a pool
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
}


class EngineStartError(Exception):
    """vLLM did not come up; the message ends with the tail of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """How to start one engine; equal options share one running engine. ``num_blocks`` includes the null block."""

    model: str = "tiny"
    api_key: str = "sk-test"
    num_blocks: int = 64
    block_size: int = 32
    max_model_len: int = 1024
    max_num_seqs: int = 8
    max_batched_tokens: int = 256
    topic: str = "kv"
    buffer_steps: int = 10_000
    plugin: bool = False
    """With cachefleet's plugin: its scheduler, its routes (the API key opens them), an index key."""
    user_key: str = ""
    """A second API key, which is not the worker key."""
    version: str = ""
    """A version that e2e/engine/versions.py installs; "" is the one of this environment."""
    cli: str = ""
    """Started by vLLM's own command: "serve", or "launch render" (which has no engine); "" by its module."""
    faults: tuple[str, ...] = ()
    """Functions and methods, as "module:path", that raise from the server's start on (faulty.py)."""
    forked: bool = True
    """From the process that has imported vLLM; not where ``version`` or ``cli`` asks for another program."""
    environment: tuple[tuple[str, str], ...] = ()
    extra: tuple[str, ...] = ()

    @property
    def python(self) -> str:
        """What to start it with."""
        return engine_python() if self.forked and not (self.version or self.cli) else sys.executable


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A running engine."""

    options: VllmOptions
    url: str
    events_endpoint: str
    replay_endpoint: str
    folder: Path
    """The model's folder, which is its tokenizer's too."""
    log: Path
    pid: int
    """Of the guard, below which all of vLLM runs that was not forked."""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.options.api_key}"}

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL:]


@contextlib.contextmanager
def running_vllm(options: VllmOptions, folder: Path, log: Path) -> Iterator[VllmServer]:
    """Run vLLM with the model in ``folder``; on leaving, no process of it is left. EngineStartError."""
    ports = _ports()
    command = [options.python, *_program(options, folder), *_arguments(options, folder, ports)]
    environment = os.environ | ENVIRONMENT | _plugin_environment(options, log.parent) | dict(options.environment)
    environment |= _import_path(options, log.parent)
    with log.open("wb") as output, _guarded(command, environment, output.fileno()) as process:
        server = VllmServer(
            options=options,
            url=f"http://127.0.0.1:{ports['engine']}",
            events_endpoint=f"tcp://127.0.0.1:{ports['events']}",
            replay_endpoint=f"tcp://127.0.0.1:{ports['replay']}",
            folder=folder,
            log=log,
            pid=process.pid,
        )
        _wait_until_healthy(server, process)
        yield server


def _ports() -> dict[str, int]:
    """Each rank publishes at the next port, so events and replays are apart."""
    with open_promises() as promises:
        while True:
            ports = take_ports({"engine": 0, "events": 0, "replay": 0})
            others = [ports[name] + rank for name in ("events", "replay") for rank in range(1, MAX_RANKS)]
            if all(promises.claim(port) and _is_free(port) for port in others) and not _meet(ports):
                return ports


def _meet(ports: dict[str, int]) -> bool:
    return abs(ports["events"] - ports["replay"]) < MAX_RANKS


def _is_free(port: int) -> bool:
    """Nobody else, as another test's fleet, has it now."""
    with socket.socket() as one:
        try:
            one.bind(("", port))
        except (OSError, OverflowError):
            return False
    return True


def _program(options: VllmOptions, folder: Path) -> list[str]:
    if not options.cli:
        return ["-m", "vllm.entrypoints.openai.api_server", f"--model={folder}"]
    return ["-m", "vllm.entrypoints.cli.main", *options.cli.split(), str(folder)]


def _arguments(options: VllmOptions, folder: Path, ports: dict[str, int]) -> list[str]:
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{ports['events']}",
        "replay_endpoint": f"tcp://*:{ports['replay']}",
        "topic": options.topic,
        "buffer_steps": options.buffer_steps,
    }
    named = {
        "served-model-name": options.model,
        "dtype": "float32",
        "host": "127.0.0.1",
        "port": str(ports["engine"]),
        "max-model-len": str(options.max_model_len),
        "max-num-seqs": str(options.max_num_seqs),
        "max-num-batched-tokens": str(options.max_batched_tokens),
        "block-size": str(options.block_size),
        "num-gpu-blocks-override": str(options.num_blocks),
        "kv-events-config": json.dumps(events),
        "distributed-executor-backend": IN_PROCESS,
    }
    both = ["--api-key", options.api_key, options.user_key]
    keys = both if options.user_key else [f"--api-key={options.api_key}"]  # a worker key may begin with a dash
    switches = ["--enforce-eager", "--enable-prompt-tokens-details", *engine_arguments.scale_out(options.version)]
    plugin = ["--scheduler-cls", engine_arguments.SCHEDULER] if options.plugin else []
    return [*keys, *(f"--{name}={value}" for name, value in named.items()), *switches, *plugin, *options.extra]


def _plugin_environment(options: VllmOptions, folder: Path) -> dict[str, str]:
    """Without the plugin not even its patches are loaded: the installed package would be found."""
    if not options.plugin:
        return {"VLLM_PLUGINS": ""}
    key, index_key = folder / "worker.key", folder / "index.key"
    key.write_text(options.api_key)
    index_key.write_text(base64.urlsafe_b64encode(INDEX_KEY).decode())
    return {
        "VLLM_PLUGINS": "cachefleet,faulty" if options.faults else "cachefleet",
        faulty.VARIABLE: ",".join(options.faults),
        "CACHEFLEET_WORKER_KEY_FILE": str(key),
        "CACHEFLEET_INDEX_KEY_FILE": str(index_key),
    }


def _import_path(options: VllmOptions, folder: Path) -> dict[str, str]:
    paths = [str(faulty.distribution(folder)), str(ROOT)] if options.faults else []
    return import_path(options.version, stub=folder if options.cli else None, also=paths)


@contextlib.contextmanager
def _guarded(command: list[str], environment: dict[str, str], output: int) -> Iterator[subprocess.Popen[bytes]]:
    """The command under the guard, which ends it and all its children also when this process is killed.

    vLLM leaves temporary files and sockets behind: they have a folder that is removed, with a path short enough.
    """
    guarded = [sys.executable, "-I", "-S", guard.__file__, str(STOP_SECONDS), *command]
    with tempfile.TemporaryDirectory(prefix="cachefleet-") as temporary:
        own = environment | {"TMPDIR": temporary}
        process = subprocess.Popen(guarded, stdin=subprocess.PIPE, stdout=output, stderr=output, env=own)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(2 * STOP_SECONDS)
            assert process.stdin is not None
            process.stdin.close()


def _wait_until_healthy(server: VllmServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _healthy(server.url):
        if process.poll() is not None:
            raise EngineStartError(f"vLLM ended with status {process.returncode}\n{server.log_tail()}")
        if time.monotonic() > deadline:
            raise EngineStartError(f"vLLM was not up after {START_SECONDS:.0f} s\n{server.log_tail()}")
        time.sleep(0.25)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:  # noqa: S310 - our own http address
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):  # URLError is one; what is no HTTP is not our engine
        return False
