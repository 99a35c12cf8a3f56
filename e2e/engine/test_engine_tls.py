"""A real engine, started as in a worker's pod, serves TLS and takes every renewal of its certificate."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cachefleet_core.engine.engine_arguments import tls_arguments
from cachefleet_runtime.tls import client_context
from e2e.engine.vllm import ENVIRONMENT, START_SECONDS, VllmOptions, _arguments, _guarded, _ports
from tests.fakes.secret_volume import SecretVolume, authority, issued
from tests.worker.test_drain_first import Agent

NAME = "demo.serving.workers.cachefleet.internal"
PROMPT = json.dumps({"model": "tiny", "prompt": "a b c", "max_tokens": 2})


class Engine:
    """Its port, and whom its certificate is verified by."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._port, self._context = port, context

    def ask(self, path: str, body: str | None = None) -> tuple[int, list[str]]:
        """Status, and the names in the certificate that was presented."""
        with (
            socket.create_connection(("127.0.0.1", self._port), timeout=60) as plain,
            self._context.wrap_socket(plain, server_hostname=NAME) as encrypted,
        ):
            client = http.client.HTTPConnection("127.0.0.1")
            client.sock = encrypted
            headers = {"Authorization": "Bearer sk-test", "Content-Type": "application/json"}
            client.request("GET" if body is None else "POST", path, body=body, headers=headers)
            status = client.getresponse().status
            certificate = encrypted.getpeercert()
        assert certificate is not None
        return status, [str(entry[1]) for entry in certificate["subjectAltName"]]

    def wait(self, process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            try:
                assert self.ask("/health")[0] == 200
            except OSError:
                time.sleep(0.25)
            else:
                return
        pytest.fail(log.read_text(errors="replace")[-6000:])


def answers_plainly(port: int) -> bool:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as plain:
        try:
            plain.request("GET", "/health")
            plain.getresponse()
        except (OSError, http.client.HTTPException):
            return False
    return True


def test_an_engine_takes_every_renewal(tmp_path: Path, tiny_model: Path) -> None:
    root, ports, log = authority(), _ports(), tmp_path / "engine.log"
    volume = SecretVolume(tmp_path / "tls", issued(root, NAME))
    options = VllmOptions(extra=tuple(tls_arguments(str(volume.folder))))
    program = [sys.executable, "-m", "cachefleet_worker.engine_start", f"--model={tiny_model}"]
    environment = os.environ | ENVIRONMENT | {"CACHEFLEET_TLS_FOLDER": str(volume.folder), "VLLM_PLUGINS": ""}
    engine = Engine(ports["engine"], client_context(root.pem.decode()))
    command = [*program, *_arguments(options, tiny_model, ports)]
    with log.open("wb") as output, _guarded(command, environment, output.fileno()) as process:
        engine.wait(process, log)
        for turn in ("first", "second", "third"):
            volume.put(issued(root, NAME, turn))
            assert engine.ask("/v1/completions", PROMPT) == (200, [NAME, turn])
        assert not answers_plainly(ports["engine"])


def test_an_engine_serves_until_its_worker_is_drained(tmp_path: Path, tiny_model: Path) -> None:
    root, ports, log = authority(), _ports(), tmp_path / "engine.log"
    volume = SecretVolume(tmp_path / "tls", issued(root, NAME))
    options = VllmOptions(extra=(*tls_arguments(str(volume.folder)), "--shutdown-timeout=30"))
    program = [sys.executable, "-m", "cachefleet_worker.engine_start", f"--model={tiny_model}"]
    environment = os.environ | ENVIRONMENT | {"CACHEFLEET_TLS_FOLDER": str(volume.folder), "VLLM_PLUGINS": ""}
    engine = Engine(ports["engine"], client_context(root.pem.decode()))
    with Agent(seconds=10, tls=volume.folder) as agent, log.open("wb") as output:
        environment |= {"CACHEFLEET_DRAIN_URL": f"{agent.url}/drain/x", "CACHEFLEET_DRAIN_SECONDS": "60"}
        command = [*program, *_arguments(options, tiny_model, ports)]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            engine.wait(process, log)
            process.terminate()
            while not agent.asked:
                time.sleep(0.1)
            assert engine.ask("/v1/completions", PROMPT)[0] == 200
            assert not agent.done_at, "it had not drained yet"
            process.wait(120)
            assert agent.asked == ["/drain/x"]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        with pytest.raises(OSError):  # refused
            engine.ask("/health")
