"""Fork server: a process that has imported vLLM and is forked for each engine, and the context that runs it.

``python -m cachefleet_local.engine_forks.fork_server SOCKET`` serves ``fork_client.py`` at the socket until it is
ended. It stays a process of one thread, or a fork would be unsafe. Engine cores, which vLLM spawns on a CPU, are forks
too: each would else import vLLM again.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Final, NoReturn

from cachefleet_core.engine.engine_arguments import CPU_ENVIRONMENT, ENVIRONMENT
from cachefleet_local.engine_forks import fork_client
from cachefleet_local.engine_forks.fork_client import ACCEPTED, MAX_MESSAGE
from cachefleet_local.engine_forks.forked_engine import Start, import_path, keep
from cachefleet_local.supervise import guard
from cachefleet_runtime.process_folders import process_folder

ENTRY: Final = "vllm.entrypoints.launchers.api_server.entry"
MODULES: Final = (
    ENTRY,
    "vllm.entrypoints.launchers.cli_args",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.executor.uniproc_executor",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen2",
)
"""Modules that every engine imports, and the models of tests and the demo."""
FIXED: Final = ("OMP_NUM_THREADS", "TORCH_COMPILE_DISABLE", "VLLM_LOGGING_LEVEL", "VLLM_LOGGING_CONFIG_PATH")
"""Variables that imports read: an engine with other values starts without the fork server."""
END_SECONDS: Final = 5.0
START_SECONDS: Final = 60.0
"""Time until it listens; it imports afterwards, and requests wait meanwhile."""
_BACKLOG: Final = 64


@contextmanager
def fork_server(log: Path) -> Iterator[Path]:
    """Run a fork server; yields an executable to use as the engines' Python. RuntimeError where it does not start.

    After the context no engine is left, nor when this process is killed.
    """
    with process_folder("cachefleet-forks-") as folder, log.open("ab") as output:
        path = folder / "socket"
        command = [sys.executable, "-m", __name__, str(path)]
        guarded = [sys.executable, "-I", "-S", guard.__file__, str(END_SECONDS), *command]
        environment = os.environ | ENVIRONMENT | CPU_ENVIRONMENT
        process = subprocess.Popen(guarded, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment)  # noqa: S603 - our own command
        try:
            _wait_for(path, process, log)
            yield _interpreter(path)
        finally:
            process.communicate()  # the guard ends it all when its standard input does


def _wait_for(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the fork server did not start; the end of its log {log}:\n{tail}")
        time.sleep(0.02)


def _interpreter(path: Path) -> Path:
    """A script that takes the arguments of ``python`` and has engines forked."""
    command = [sys.executable, "-I", "-S", fork_client.__file__, str(path), sys.executable]
    script = path.with_name("python")
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o700)
    return script


def main(path: str) -> None:
    """Listen at the socket ``path``, import vLLM, serve."""
    with listening(path) as listener:
        began = time.monotonic()
        for module in MODULES:
            import_module(module)
        _fork_where_vllm_spawns()
        gc.collect()
        gc.freeze()  # a collection in a fork would else copy every page
        threads = len(list(Path("/proc/self/task").iterdir()))
        sys.stderr.write(f"vLLM imported in {time.monotonic() - began:.1f} s; threads: {threads}\n")
        serve(listener, import_module(ENTRY).main)


def listening(path: str) -> socket.socket:
    """A listening socket at ``path``, which appears there only when it accepts connections."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    draft = f"{path}.draft"
    listener.bind(draft)
    listener.listen(_BACKLOG)
    Path(draft).rename(path)
    return listener


def _fork_where_vllm_spawns() -> None:
    """Make vLLM fork its processes: replace ``get_mp_context`` in every module that has imported it."""
    utilities = import_module("vllm.utils.system_utils")
    original = utilities.get_mp_context
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and vars(module).get("get_mp_context") is original:
            module.get_mp_context = _fork_context  # type: ignore[attr-defined]


def _fork_context() -> BaseContext:
    return multiprocessing.get_context("fork")


def serve(listener: socket.socket, run: Callable[[], None]) -> NoReturn:
    """Fork an engine, whose entry point is ``run``, for each request; for ever."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    while True:
        connection, _ = listener.accept()
        with connection:
            message, descriptors, _, _ = socket.recv_fds(connection, MAX_MESSAGE, 2)
            if len(descriptors) == 2:  # else the client has gone
                start = Start(**json.loads(message), output=descriptors[0], errors=descriptors[1])
                if _is_taken_on(start, connection) and not os.fork():
                    _keep(start, connection, listener, run)
            for descriptor in descriptors:
                os.close(descriptor)


def _is_taken_on(start: Start, connection: socket.socket) -> bool:
    accepted = _accepts(start.environment)
    with suppress(OSError):  # the client has gone; a keeper finds that too
        connection.send(ACCEPTED if accepted else b"refused")
    return accepted


def _keep(start: Start, connection: socket.socket, listener: socket.socket, run: Callable[[], None]) -> NoReturn:
    try:
        listener.close()
        keep(start, connection, run)
    finally:
        os._exit(0)


def _accepts(environment: Mapping[str, str]) -> bool:
    """Whether the modules imported here are those that an interpreter with that environment would import."""
    same = all(environment.get(name) == os.environ.get(name) for name in FIXED)
    return same and not any((Path(folder) / "vllm").is_dir() for folder in import_path(environment))


if __name__ == "__main__":
    main(sys.argv[1])
