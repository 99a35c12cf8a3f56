"""``cachefleet up`` as a person runs it: real control plane, real agent, real vLLM, signals from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

POOL = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {name: solo}
spec:
  model: {name: tiny, source: cachefleet/tiny, weightsMiB: 2, kvBytesPerToken: 512}
  engine: {maxModelLen: 1024, dtype: float32}
  device: {resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: 506}
  prefixCache: {budgetMiB: 2}
"""
READY_SECONDS = 300.0
GONE_SECONDS = 20.0
MESSAGE = " ".join(["Read the report and answer the question."] * 12)


@dataclass(frozen=True, slots=True)
class Up:
    """A running ``cachefleet up``."""

    process: subprocess.Popen[bytes]
    folder: Path
    output: Path

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return cachefleet(*arguments, "--data-dir", str(self.data_dir))

    def workers(self) -> list[dict[str, object]]:
        return list(json.loads(self.command("workers", "-o", "json").stdout))

    def below(self, name: str) -> list[psutil.Process]:
        """Processes of the fleet with ``name`` on their command line; the guards are not asked."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if name in line and "guard.py" not in line:
                found.append(process)
        return found


def cachefleet(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cachefleet_local", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def start(folder: Path, *arguments: str) -> Up:
    pool_file = folder / "pool.yaml"
    pool_file.write_text(POOL)
    output = folder / "output.txt"
    options = ["--data-dir", str(folder / "data"), "--gateway-port", "0", "--internal-port", "0"]
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "cachefleet_local", "up", str(pool_file), *options, *arguments],
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    return Up(process, folder, output)


def until(condition: Callable[[], object], seconds: float, what: str, up: Up | None = None) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        said = up.output.read_text() if up else ""
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s\n{said}"
        assert up is None or up.process.poll() is None, f"cachefleet up has ended\n{said}"
        time.sleep(0.2)


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = start(tmp_path_factory.mktemp("up"))
    try:
        until(lambda: "Ctrl-C stops" in running.output.read_text(), READY_SECONDS, "ready", running)
        yield running
        everything = psutil.Process(running.process.pid).children(recursive=True)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(GONE_SECONDS) == 0, running.output.read_text()
        assert [process for process in everything if not is_gone(process)] == []
        assert "everything has stopped" in running.output.read_text()
        assert not (running.data_dir / "fleet.json").exists()
    finally:
        running.process.kill()
        running.process.wait()


def test_the_printed_request_works_as_pasted(up: Up) -> None:
    (line,) = [line for line in up.output.read_text().splitlines() if line.startswith("curl ")]
    answer = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"]


def test_a_prompt_sent_twice_is_predicted_and_cached(up: Up) -> None:
    (line,) = [line for line in up.output.read_text().splitlines() if line.startswith("curl ")]
    request = line.replace("Hello", MESSAGE)
    for _ in range(2):
        until(lambda: up.workers()[0]["stream"] == "live", 30, "a live stream", up)
        subprocess.run(["sh", "-c", request], capture_output=True, check=True, timeout=60)
        time.sleep(1)
    last = json.loads(up.command("decisions", "-o", "json").stdout)[0]
    assert last["knowledge"] == "exact"
    assert last["cachedTokens"] >= 64
    assert last["predictedTokens"] == last["cachedTokens"]


def test_listings_show_the_fleet(up: Up) -> None:
    assert re.search(r"^default/solo +tiny +1/1", up.command("pools").stdout, re.MULTILINE)
    assert re.search(r"^solo-0 +default/solo +ready", up.command("workers").stdout, re.MULTILINE)


def test_a_second_fleet_on_the_same_folder_is_refused(up: Up) -> None:
    second = cachefleet("up", str(up.folder / "pool.yaml"), "--data-dir", str(up.data_dir))
    assert second.returncode == 1
    assert f"a fleet already runs on the data folder {up.data_dir} (process {up.process.pid})" in second.stderr
    assert up.command("workers").returncode == 0


def test_a_taken_port_is_named(up: Up, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        pool = str(up.folder / "pool.yaml")
        taken = cachefleet("up", pool, "--data-dir", str(tmp_path / "data"), "--gateway-port", port)
    assert taken.returncode == 1
    assert f"port {port} for the gateway is taken by another process" in taken.stderr


def test_secrets_are_private_and_on_no_command_line(up: Up) -> None:
    files = list((up.data_dir / "secrets").iterdir())
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    secrets = [file.read_text().strip() for file in files]
    lines = [" ".join(process.cmdline()) for process in psutil.Process(up.process.pid).children(recursive=True)]
    assert not any(secret in line for secret in secrets for line in lines)
    logs = "".join(log.read_text(errors="replace") for log in (up.data_dir / "logs").iterdir())
    assert not any(secret in logs for secret in secrets)


def test_a_killed_engine_is_started_again_and_seen_as_new(up: Up) -> None:
    until(lambda: up.workers()[0]["stream"] == "live", 30, "a live stream", up)
    epoch = up.workers()[0]["epoch"]
    (engine,) = up.below("vllm.entrypoints.openai.api_server")
    family = [engine, *engine.children(recursive=True)]
    assert len(family) >= 3
    engine.kill()
    until(lambda: all(map(is_gone, family)), GONE_SECONDS, "the engine's children gone", up)
    until(lambda: not up.workers()[0]["ready"], 15, "not ready", up)
    until(lambda: up.workers()[0]["ready"], READY_SECONDS, "ready again", up)
    until(lambda: up.workers()[0]["epoch"] != epoch, 30, "a new epoch", up)
    assert "solo-0.engine: ended by signal 9, starts again in 1 s" in up.output.read_text()


def test_a_killed_control_plane_comes_back_and_knows_the_blocks_again(up: Up) -> None:
    (line,) = [line for line in up.output.read_text().splitlines() if line.startswith("curl ")]
    subprocess.run(["sh", "-c", line.replace("Hello", MESSAGE)], capture_output=True, check=True, timeout=60)
    until(lambda: up.workers()[0]["heldBlocks"], 15, "held blocks", up)
    held = up.workers()[0]["heldBlocks"]
    (control_plane,) = up.below("cachefleet_controlplane")
    control_plane.kill()
    until(lambda: is_gone(control_plane), 5, "killed")
    until(lambda: up.command("workers").returncode == 0, 60, "the control plane", up)
    until(lambda: up.workers() and up.workers()[0]["heldBlocks"] == held, 30, "the same blocks", up)


def test_a_killed_supervisor_leaves_nothing(tmp_path: Path) -> None:
    running = start(tmp_path)
    try:
        until(lambda: len(running.below("EngineCore")) > 0, READY_SECONDS, "an engine core", running)
        everything = psutil.Process(running.process.pid).children(recursive=True)
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait()
        until(lambda: all(map(is_gone, everything)), GONE_SECONDS, "everything gone")
    finally:
        running.process.kill()
        running.process.wait()


def test_a_stop_during_the_start_is_clean(tmp_path: Path) -> None:
    running = start(tmp_path)
    try:
        until(lambda: len(running.below("vllm.entrypoints")) > 0, READY_SECONDS, "an engine", running)
        everything = psutil.Process(running.process.pid).children(recursive=True)
        running.process.terminate()
        assert running.process.wait(GONE_SECONDS) == 0
        assert [process for process in everything if not is_gone(process)] == []
    finally:
        running.process.kill()
        running.process.wait()
