"""The command line as a person meets it: output, exit statuses, messages."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from rich.console import Console

from cachefleet_local import __main__ as cli
from cachefleet_local.cli.commands.up import until_stopped
from cachefleet_local.cli.screen import Screen, example
from cachefleet_local.cli_errors import Exit, FailureError
from cachefleet_local.fleet.local_fleet import Options, Prepared
from cachefleet_local.fleet.processes import plan_fleet
from cachefleet_local.supervise.process_spec import Kind, ProcessSpec
from cachefleet_local.supervise.process_states import Life, State
from tests.local.fleet.test_processes import KEY
from tests.local.pools import EXAMPLES, place
from tests.local.pools import example as example_pools


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["cachefleet", *arguments])
    status = 0
    try:
        cli.main()
    except SystemExit as end:
        status = int(end.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


COMMANDS = [
    *("up", "check", "import", "status", "top", "pools", "workers", "decisions", "explain"),
    *("lint", "flush", "capacity", "simulate", "console", "version"),
    *("tenants", "tenants keys"),
    *(f"tenants {name}" for name in ("list", "create", "show", "set", "delete", "usage", "access", "open")),
    *(f"doctor {name}" for name in ("fleet", "certify", "certificates", "hit")),
    *(f"contexts {name}" for name in ("list", "set", "use", "remove")),
    *(f"tenants keys {name}" for name in ("list", "create", "rotate", "revoke")),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_the_exit_statuses(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(*command.split(), "--help", monkeypatch=monkeypatch, capsys=capsys)
    assert status == 0
    assert "Exit status: 0 done, 1 failed, 2 bad input." in out


@pytest.mark.parametrize("words", [("--version",), ("version",)])
def test_the_version_is_told_in_either_way(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = run(*words, monkeypatch=monkeypatch, capsys=capsys)
    assert told == (0, f"{version('cachefleet')}\n", "")


@pytest.mark.parametrize(
    ("command", "argument"), [("workers", "[NAME]"), ("pools", "[NAMESPACE/NAME]"), ("explain", "[ID]")]
)
def test_what_may_be_left_out_is_in_brackets_once(
    command: str, argument: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(command, "--help", monkeypatch=monkeypatch, capsys=capsys)[1].splitlines()[0]
    assert first == f"Usage: cachefleet {command} [OPTIONS] {argument}"


def test_a_sound_file_passes_the_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(EXAMPLES / "cpu-two-models.yaml")
    assert run("check", file, monkeypatch=monkeypatch, capsys=capsys) == (
        0,
        "default/assistants: sound\ndefault/readers: sound\n",
        "",
    )


@pytest.mark.parametrize("command", ["check", "up"])
def test_a_bad_file_has_one_line_for_each_problem(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (EXAMPLES / "cpu-two-workers.yaml").read_text()
    file = tmp_path / "pool.yaml"
    file.write_text(text.replace("replicas: 2", "replicas: -1").replace("maxModelLen: 3072", "maxModelLen: long"))
    monkeypatch.chdir(tmp_path)
    status, out, err = run(command, str(file), monkeypatch=monkeypatch, capsys=capsys)
    assert (status, out) == (2, "")
    lines = err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"{file}: spec.replicas: -1: must be a whole number from 0 to 1000")
    assert lines[1].startswith(f"{file}: spec.engine.maxModelLen: ")
    assert list(tmp_path.iterdir()) == [file]


def test_pools_of_several_control_planes_do_not_run_on_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pool.yaml"
    text = (EXAMPLES / "cpu-two-models.yaml").read_text()
    file.write_text(text.replace("spec:\n", "spec:\n  controlPlane: eu\n", 1))
    monkeypatch.chdir(tmp_path)
    assert run("check", str(file), monkeypatch=monkeypatch, capsys=capsys)[0] == 0
    status, out, err = run("up", str(file), monkeypatch=monkeypatch, capsys=capsys)
    assert (status, out) == (2, "")
    told = "a fleet on one machine runs one control plane: give all pools one name, or a file of their own to each"
    assert err.splitlines() == [
        f"default/assistants: spec.controlPlane is eu; {told}",
        f"default/readers: spec.controlPlane is default; {told}",
    ]
    assert list(tmp_path.iterdir()) == [file]


def test_a_budget_that_does_not_fit_is_told_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text((EXAMPLES / "cpu-two-workers.yaml").read_text().replace("budgetMiB: 4", "budgetMiB: 7"))
    status, _, err = run("check", str(file), monkeypatch=monkeypatch, capsys=capsys)
    assert status == 2
    assert "7 MiB" in err
    assert "6 MiB" in err


def test_a_model_that_nobody_makes_is_told_with_those_that_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text((EXAMPLES / "cpu-two-workers.yaml").read_text().replace("cachefleet/tiny", "cachefleet/bogus"))
    monkeypatch.chdir(tmp_path)
    status, _, err = run("check", str(file), monkeypatch=monkeypatch, capsys=capsys)
    assert status == 2
    assert "spec.model.source: cachefleet/bogus: must be one of cachefleet/tiny, cachefleet/small" in err
    (tmp_path / "cachefleet" / "bogus").mkdir(parents=True)
    assert run("check", str(file), monkeypatch=monkeypatch, capsys=capsys)[0] == 0


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_file_that_cannot_be_read_is_bad_input(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pool.yaml"
    if content:
        file.write_bytes(content)
    status, _, err = run("check", str(file), monkeypatch=monkeypatch, capsys=capsys)
    assert status == 2
    assert err.startswith(f"cannot read {file}: ")


def test_a_listing_without_a_fleet_says_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CACHEFLEET_ADMIN_URL", raising=False)
    status, _, err = run("workers", "--data-dir", str(tmp_path), monkeypatch=monkeypatch, capsys=capsys)
    assert status == 2
    assert "cachefleet up POOL.yaml" in err


def test_a_wrong_option_is_bad_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(EXAMPLES / "cpu-two-workers.yaml")
    assert run("up", file, "--policy", "best", monkeypatch=monkeypatch, capsys=capsys)[0] == 2
    assert run("up", file, "--gateway-port", "65536", monkeypatch=monkeypatch, capsys=capsys)[0] == 2


def test_version_is_the_distributions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("version", monkeypatch=monkeypatch, capsys=capsys)
    assert status == 0
    assert out.strip().count(".") == 2


def test_the_example_request_survives_a_shell() -> None:
    shell = subprocess.run(
        ["sh", "-c", example("http://127.0.0.1:8080", "tiny").replace("curl", "printf '%s\\n'", 1)],
        capture_output=True,
        text=True,
        check=True,
    )
    url, _, header, _, body = shell.stdout.splitlines()
    assert url == "http://127.0.0.1:8080/v1/chat/completions"
    assert header == "Content-Type: application/json"
    assert json.loads(body)["model"] == "tiny"


def spec() -> ProcessSpec:
    return ProcessSpec(name="demo-0.engine", kind=Kind.ENGINE, argv=(), environment={}, log=Path("/l"), ready_url="")


def fleet() -> Prepared:
    pools = example_pools("cpu-two-workers")
    where = place(pools)
    return Prepared(tuple(pools), where.folder, plan_fleet(pools, where, KEY), Options())


def shown(*, terminal: bool) -> str:
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=terminal, width=60, color_system=None))
    screen.starting([spec()])
    screen.changed(spec(), Life(State.STARTING, starts=1))
    screen.changed(spec(), Life(State.BACKING_OFF, since=1.0, wake_at=3.0, failures=2, starts=1, exit_status=137))
    screen.changed(spec(), Life(State.STARTING, starts=2, failures=2))
    screen.changed(spec(), Life(State.READY, starts=2, was_ready=True))
    screen.ready(fleet())
    screen.changed(spec(), Life(State.FAILED, starts=3, exit_status=1))
    screen.stopping()
    screen.stopped()
    return out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_the_screen_tells_of_restarts_addresses_and_the_end(terminal: bool) -> None:  # noqa: FBT001
    text = shown(terminal=terminal)
    assert "demo-0.engine: ended by signal 9, starts again in 2 s; log: /l" in text
    assert "given up after 3 starts" in text
    assert example("http://127.0.0.1:9000", "tiny") in text, "in one piece, however narrow the terminal"
    assert "http://127.0.0.1:9000/v1" in text
    assert re.search(r"^Look +cachefleet status .*top, doctor", text, re.MULTILINE)
    assert text.rstrip().endswith("everything has stopped")


@pytest.mark.parametrize("link", ["", "http://127.0.0.1:9001/console/enter#code"])
def test_the_screen_tells_where_the_console_is(link: str) -> None:
    out = io.StringIO()
    Screen(Console(file=out, width=60, color_system=None)).ready(fleet(), link)
    told = next(line for line in out.getvalue().splitlines() if line.startswith("Console"))
    assert (link or "/console/  sign in: cachefleet console") in told


def test_without_a_terminal_each_event_is_one_line() -> None:
    lines = shown(terminal=False).splitlines()
    assert lines[0].endswith("to start: demo-0.engine")
    assert [line.split("] ")[1] for line in lines[1:5]] == [
        "demo-0.engine: starting",
        "demo-0.engine: ended by signal 9, starts again in 2 s; log: /l",
        "demo-0.engine: starting again (start 2)",
        "demo-0.engine: ready",
    ]
    assert all("\x1b" not in line for line in lines)


def test_an_agent_whose_engine_is_away_waits_for_it() -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, width=60))
    agent = replace(spec(), name="demo-0.agent", kind=Kind.AGENT)
    screen.changed(agent, Life(State.STARTING, starts=1, was_ready=True))
    assert out.getvalue().rstrip().endswith("demo-0.agent: waits for its engine")


def test_a_failure_is_its_lines_and_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise FailureError(["port 8080 for the gateway is taken [by] another process"], Exit.FAILED)

    monkeypatch.setattr(cli, "app", fail)
    assert run(monkeypatch=monkeypatch, capsys=capsys) == (
        1,
        "",
        "port 8080 for the gateway is taken [by] another process\n",
    )


@pytest.fixture
def _hangups_count() -> Iterator[None]:
    """Also where the tests run under nohup, which has them ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_hangups_count")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_ends_the_work_and_later_ones_do_not_cut_its_cleaning_short(number: signal.Signals) -> None:
    out = io.StringIO()
    cleaned = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(10)
        finally:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)
            cleaned.append(True)

    until_stopped(work(), Screen(Console(file=out, width=80)))
    assert cleaned == [True]
    assert out.getvalue().count("stopping") == 1


def test_a_failure_of_the_work_is_not_swallowed() -> None:
    async def work() -> None:
        raise FailureError(["no"])

    with pytest.raises(FailureError, match="no"):
        until_stopped(work(), Screen(Console(file=io.StringIO())))
