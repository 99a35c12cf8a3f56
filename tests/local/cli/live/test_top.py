"""``cachefleet top``: its tables, its keys on a terminal, and one print for pipes."""

from __future__ import annotations

import os
import pty
import signal
import termios
from pathlib import Path

import msgspec
import pytest

from cachefleet_core.fleet_status.pool_facts import PoolFacts
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_local.cli.live.top_view import MIB, ORDERS, blocks_bar, screen
from tests.local.cli.admin_api import AdminApi, environment, ran, started
from tests.local.cli.test_listing import POOL, WORKER, item


def worker(number: int, *, block_bytes: int = 0, listed: bool = True, **load: int) -> WorkerFacts:
    assert WORKER.load is not None
    return msgspec.structs.replace(
        WORKER,
        id=f"default/demo/demo-{number}#0",
        load=msgspec.structs.replace(WORKER.load, **load),
        held_blocks=number,
        block_bytes=block_bytes,
        listed=listed,
    )


SILENT = msgspec.structs.replace(WORKER, load=None, report_age_seconds=None)


def names(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line.startswith("default/demo/")]


@pytest.fixture
def api() -> AdminApi:
    api = AdminApi()
    api.items("pools", item(POOL))
    api.items("workers", item(worker(0, running=1)), item(worker(1, running=7)))
    return api


def test_blocks_are_in_use_cached_or_free() -> None:
    assert blocks_bar(worker(0, blocks_total=100, blocks_free=60, blocks_idle=40)) == "[########========....]"
    assert blocks_bar(SILENT) == ""


def test_pools_sum_up_their_workers() -> None:
    text = screen([POOL], [worker(1, running=1, waiting=2), worker(2, running=3, waiting=4)])
    assert text.splitlines()[1].split() == ["default/demo", "tiny", "1/2", "4", "6", "3", "-", "-"]


def test_idle_cache_is_shown_against_the_budget() -> None:
    pool = msgspec.structs.replace(POOL, budget_mib=2048)
    workers = [
        worker(0, blocks_idle=6, block_bytes=MIB // 4),
        worker(1, blocks_idle=1500, block_bytes=MIB),
        msgspec.structs.replace(worker(2), load=None),
        worker(3, blocks_idle=12, block_bytes=MIB, listed=False),
    ]
    text = screen([pool], workers).splitlines()
    assert text[0].split()[6] == "IDLE/BUDGET"
    assert "1,502/6,144 MiB" in text[1], "of the workers that the pool lists"
    shown = zip(text[-4:], ("1.5", "1,500", "?", "12"), strict=True)
    assert [f" {idle}/2,048 MiB" in line for line, idle in shown] == [True] * 4
    assert "/2,048" not in screen([POOL], workers), "without a budget there is no share of it"


def test_a_control_plane_that_tells_no_budget_is_shown_all_the_same() -> None:
    older = {name: value for name, value in item(POOL).items() if name != "budgetMiB"}
    assert screen([msgspec.convert(older, PoolFacts)], [worker(0)]).splitlines()[1].startswith("default/demo ")


@pytest.mark.parametrize(
    ("key", "first"),
    [("n", "default/demo/demo-0#0"), ("r", "default/demo/demo-1#0"), ("b", "default/demo/demo-1#0")],
)
def test_keys_order_workers(key: str, first: str) -> None:
    assert names(screen([], [worker(1, running=5), worker(0, running=2)], key))[0] == first


def test_every_order_takes_workers_that_never_reported() -> None:
    for key in ORDERS:
        assert len(names(screen([], [SILENT, worker(3)], key))) == 2


def test_on_a_pipe_it_prints_once(api: AdminApi, tmp_path: Path) -> None:
    with api.serving():
        for words in ((), ("--once",)):
            status, out, err = ran("top", *words, env=environment(api, tmp_path))
            assert (status, err) == (0, "")
            assert "\x1b" not in out
            assert len(names(out)) == 2


@pytest.mark.parametrize("end", [b"q", signal.SIGTERM, signal.SIGINT])
def test_on_a_terminal_it_is_live_until_its_end(api: AdminApi, tmp_path: Path, end: bytes | signal.Signals) -> None:
    leader, follower = pty.openpty()
    before = termios.tcgetattr(leader)
    more = {"TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    with (
        api.serving(),
        started(
            "top", "--interval", "0.1", env=environment(api, tmp_path, **more), stdin=follower, stdout=follower
        ) as process,
    ):
        os.close(follower)
        _until(leader, b"demo-1#0")
        api.answers["workers"] = 503
        _until(leader, b"no workers")
        api.items("workers", item(worker(2)))
        _until(leader, b"demo-2#0")
        os.write(leader, b"r")
        _until(leader, b"running*")
        if isinstance(end, bytes):
            os.write(leader, end)
        else:
            process.send_signal(end)
        _until(leader, LEFT)
        assert process.wait(60) == (0 if isinstance(end, bytes) else 128 + end)
    assert termios.tcgetattr(leader) == before
    os.close(leader)


LEFT = b"\x1b[?1049l"
"""The terminal's own screen again."""


def _until(terminal: int, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        seen += os.read(terminal, 65536)
    return seen
