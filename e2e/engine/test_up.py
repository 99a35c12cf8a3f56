"""``cachefleet up`` as a person runs it: real control plane, real agent, real vLLM, signals from outside.

Engines start by themselves here: how they start and what is left of them is what these tests are about.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from e2e.engine.fleet import GONE_SECONDS, READY_SECONDS, Up, cachefleet, is_gone, running_up, start, until

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
MESSAGE = " ".join(["Read the report and answer the question."] * 12)


def started(folder: Path) -> Up:
    pool_file = folder / "pool.yaml"
    pool_file.write_text(POOL)
    return start(pool_file, folder, forked=False)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    pool_file = folder / "pool.yaml"
    pool_file.write_text(POOL)
    with running_up(pool_file, folder, forked=False) as running:
        yield running
    assert "everything has stopped" in running.output.read_text()
    assert not (running.data_dir / "fleet.json").exists()


def test_the_printed_request_works_as_pasted(up: Up) -> None:
    (line,) = [line for line in up.output.read_text().splitlines() if line.startswith("curl ")]
    answer = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"]


def test_a_prompt_sent_twice_is_predicted_and_cached(up: Up) -> None:
    (line,) = [line for line in up.output.read_text().splitlines() if line.startswith("curl ")]
    request = line.replace("Hello", MESSAGE)
    until(lambda: up.workers()[0]["stream"] == "live", 60, "a live stream", up)
    subprocess.run(["sh", "-c", request], capture_output=True, check=True, timeout=300)
    until(lambda: _predicted(request) >= 64, 60, "a report of the blocks", up)
    subprocess.run(["sh", "-c", request], capture_output=True, check=True, timeout=300)
    last = json.loads(up.command("decisions", "-o", "json").stdout)[0]
    assert last["knowledge"] == "exact"
    assert last["cachedTokens"] >= 64
    assert last["predictedTokens"] == last["cachedTokens"]


def _predicted(request: str) -> int:
    """Tokens that the index promises for a request, which is not sent."""
    asked = request.replace("/v1/chat/completions", "/v1/route")
    answer = subprocess.run(["sh", "-c", asked], capture_output=True, check=True, timeout=300)
    return int(json.loads(answer.stdout)["predicted_tokens"])


def test_a_flush_by_prompt_says_first_what_goes_and_the_index_follows(up: Up, tmp_path: Path) -> None:
    (line,) = [line for line in up.output.read_text().splitlines() if line.startswith("curl ")]
    text = f"Forget this once you have read it. {MESSAGE}"
    request, body = line.replace("Hello", text), tmp_path / "body.json"
    body.write_text(json.dumps({"model": "tiny", "messages": [{"role": "user", "content": text}]}))
    until(lambda: up.workers()[0]["stream"] == "live", 60, "a live stream", up)
    subprocess.run(["sh", "-c", request], capture_output=True, check=True, timeout=300)
    until(lambda: _predicted(request) >= 64, 60, "a report of the blocks", up)
    assert "say --yes" in up.command("flush", "--prompt", str(body)).stderr
    foreseen = json.loads(up.command("flush", "--prompt", str(body), "--dry-run", "-o", "json").stdout)
    told = json.loads(up.command("flush", "--prompt", str(body), "--tenant", "default", "--yes", "-o", "json").stdout)
    assert told == foreseen | {"dryRun": False}
    assert told["blocks"] > 0
    until(lambda: _predicted(request) < 64, 60, "a report that they are gone", up)


def test_its_engine_is_as_the_pool_asks(up: Up) -> None:
    until(lambda: up.workers()[0]["stream"] == "live", 60, "a live stream", up)
    assert up.workers()[0]["configuration"] == []


def test_its_engine_logs_requests_and_no_polls(up: Up) -> None:
    (line,) = [line for line in up.output.read_text().splitlines() if line.startswith("curl ")]
    until(lambda: up.workers()[0]["stream"] == "live", 60, "a live stream", up)
    (worker,), log = up.workers(), up.data_dir / "logs" / "solo-0.engine.log"
    before = _polls(worker["agent"])
    subprocess.run(["sh", "-c", line], capture_output=True, check=True, timeout=300)
    for path in ("/health", "/metrics"):  # as the kubelet and Prometheus ask
        urllib.request.urlopen(worker["url"] + path, timeout=60).close()  # noqa: S310 - ours
    until(lambda: _polls(worker["agent"]) >= before + 5, 120, "five polls more", up)
    lines = log.read_text().splitlines()
    assert [line for line in lines if '"POST /v1/chat/completions' in line]
    polls = [line for line in lines if re.search(r'"[A-Z]+ /(health|metrics|version|v1/fleet|is_)', line)]
    assert polls == []


def _polls(agent: str) -> float:
    """How often an agent has asked its engine."""
    with urllib.request.urlopen(f"{agent}/metrics", timeout=60) as answer:  # noqa: S310 - ours
        text = answer.read().decode()
    return sum(
        map(float, re.findall(r"^cachefleet_agent_\w*polls_total\{[^}]*answered[^}]*\} (\S+)", text, re.MULTILINE))
    )


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
    lines = [" ".join(process.cmdline()) for process in up.below("")]
    assert not any(secret in line for secret in secrets for line in lines)
    logs = "".join(log.read_text(errors="replace") for log in (up.data_dir / "logs").iterdir())
    assert not any(secret in logs for secret in secrets)


def test_a_killed_engine_is_started_again_and_seen_as_new(up: Up) -> None:
    until(lambda: up.workers()[0]["stream"] == "live", 60, "a live stream", up)
    epoch = up.workers()[0]["epoch"]
    (engine,) = up.below("vllm.entrypoints.openai.api_server")
    family = [engine, *engine.children(recursive=True)]
    assert len(family) >= 3
    engine.kill()
    until(lambda: all(map(is_gone, family)), GONE_SECONDS, "the engine's children gone", up)
    until(lambda: not up.workers()[0]["ready"], 60, "not ready", up)
    until(lambda: up.workers()[0]["ready"], READY_SECONDS, "ready again", up)
    until(lambda: up.workers()[0]["epoch"] != epoch, 60, "a new epoch", up)
    assert "solo-0.engine: ended by signal 9, starts again in 1 s" in up.output.read_text()


def test_a_killed_control_plane_comes_back_and_knows_the_blocks_again(up: Up) -> None:
    (line,) = [line for line in up.output.read_text().splitlines() if line.startswith("curl ")]
    subprocess.run(["sh", "-c", line.replace("Hello", MESSAGE)], capture_output=True, check=True, timeout=300)
    until(lambda: up.workers()[0]["heldBlocks"], 60, "held blocks", up)
    time.sleep(2)  # the answer's own blocks are reported too
    held = up.workers()[0]["heldBlocks"]
    (control_plane,) = up.below("cachefleet_controlplane")
    control_plane.kill()
    until(lambda: is_gone(control_plane), 60, "killed")
    waited = subprocess.run(["sh", "-c", line], capture_output=True, check=True, timeout=300)  # refused, it would fail
    assert b"choices" in waited.stdout
    until(lambda: up.command("workers").returncode == 0, 60, "the control plane", up)
    until(lambda: up.workers() and up.workers()[0]["heldBlocks"] >= held, 60, "the same blocks", up)


def test_a_killed_supervisor_leaves_nothing(tmp_path: Path) -> None:
    running = started(tmp_path)
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
    running = started(tmp_path)
    try:
        until(lambda: len(running.below("vllm.entrypoints")) > 0, READY_SECONDS, "an engine", running)
        everything = psutil.Process(running.process.pid).children(recursive=True)
        running.process.terminate()
        assert running.process.wait(GONE_SECONDS) == 0
        assert [process for process in everything if not is_gone(process)] == []
    finally:
        running.process.kill()
        running.process.wait()
