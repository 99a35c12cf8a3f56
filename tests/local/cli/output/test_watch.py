"""``--watch`` as a person and a pipe meet it: against a control plane that changes, goes away and comes back."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.local.cli.admin_api import AdminApi, environment, started
from tests.local.cli.test_listing import DECISION, POOL, WORKER, item

FAST = ("--watch", "--interval", "0.1")


@pytest.fixture
def api() -> AdminApi:
    api = AdminApi()
    api.items("workers", item(WORKER))
    api.items("pools", item(POOL))
    return api


@contextmanager
def watching(*words: str, api: AdminApi, folder: Path, **more: Any) -> Iterator[subprocess.Popen[str]]:
    with started(*words, *FAST, env=environment(api, folder), **more) as process:
        yield process


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_on_a_pipe_what_is_new_or_changed_is_added(api: AdminApi, tmp_path: Path) -> None:
    with api.serving(), watching("workers", api=api, folder=tmp_path) as process:
        assert line(process).split()[0] == "WORKER"
        assert line(process).split()[:3] == ["demo-0", "default/demo", "ready"]
        older = msgspec.structs.replace(WORKER, report_age_seconds=3.0)
        other = msgspec.structs.replace(WORKER, id="default/demo/demo-1#0", name="demo-1")
        api.items("workers", item(older), item(other))
        assert line(process).split()[0] == "demo-1"
        api.items("workers", item(msgspec.structs.replace(older, excluded=True)))
        assert line(process).split()[:3] == ["demo-0", "default/demo", "excluded"]
        assert process.stderr is not None
        assert process.stderr.readline() == "default/demo/demo-1#0: gone\n"
        assert interrupted(process) == (130, "", "")


def test_it_survives_a_restart_of_the_control_plane(api: AdminApi, tmp_path: Path) -> None:
    with ExitStack() as first:
        first.enter_context(api.serving())
        with watching("pools", "-o", "json", api=api, folder=tmp_path) as process:
            assert json.loads(line(process))["workers"]["ready"] == 1
            first.close()
            assert process.stderr is not None
            assert process.stderr.readline().rstrip().endswith("; trying again")
            better = msgspec.structs.replace(POOL.workers, ready=2)
            api.items("pools", item(msgspec.structs.replace(POOL, workers=better)))
            with api.serving():
                assert json.loads(line(process))["workers"]["ready"] == 2
                assert interrupted(process)[0] == 130


def test_decisions_are_added_in_the_order_of_time(api: AdminApi, tmp_path: Path) -> None:
    made = [item(DECISION.model_copy(update={"id": f"d{number}"})) for number in range(3)]
    api.items("decisions", made[1], made[0])
    with api.serving(), watching("decisions", "-o", "name", api=api, folder=tmp_path) as process:
        assert [line(process), line(process)] == ["d0", "d1"]
        api.items("decisions", made[2], made[1])
        assert line(process) == "d2"
        assert interrupted(process) == (130, "", "")


@pytest.mark.parametrize(("token", "said"), [("other", "the admin token is not accepted"), ("t0ken", "cannot reach")])
def test_what_is_wrong_from_the_start_ends_it(api: AdminApi, tmp_path: Path, token: str, said: str) -> None:
    api.token = token
    with api.serving():
        url = api.url if token == "other" else "http://127.0.0.1:1"
        env = environment(api, tmp_path, CACHEFLEET_ADMIN_URL=url)
        with started("pools", *FAST, env=env) as process:
            _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said in err


def test_a_terminal_is_drawn_anew(api: AdminApi, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    with api.serving(), watching("pools", api=api, folder=tmp_path, stdout=follower, stdin=follower) as process:
        os.close(follower)
        seen = b""
        while seen.count(b"\x1b[H") < 3:
            seen += os.read(leader, 4096)
        status, _, err = interrupted(process)
    os.close(leader)
    assert (status, err) == (130, "")
    assert seen.startswith(b"\x1b[2J\x1b[H")
    assert b"every 0.1 s" in seen
    assert b"default/demo" in seen
