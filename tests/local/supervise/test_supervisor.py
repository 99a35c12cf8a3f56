"""The executor with real, small processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cachefleet_local.fleet.ports import take_ports
from cachefleet_local.supervise import process_states
from cachefleet_local.supervise.process_spec import Kind, ProcessSpec
from cachefleet_local.supervise.process_states import Life, State
from cachefleet_local.supervise.supervisor import Supervisor
from tests.local.supervise.test_guard import gone

pytestmark = pytest.mark.usefixtures("hurried")

HANG_SECONDS = 3000
"""Of the hurried loop; the processes have a minute of their own time."""
SERVER = """
import http.server, os, subprocess, sys
port, note, child = int(sys.argv[1]), sys.argv[2], sys.argv[3]
open(note, "a").write(f"{os.getpid()}\\n")
if child: open(child, "w").write(str(subprocess.Popen(["sleep", "60"], start_new_session=True).pid))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if os.path.exists(note + ".unready") else 200); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

History = list[tuple[str, State]]


def server(
    folder: Path, name: str, *, after: tuple[str, ...] = (), child: bool = False, heavy: bool = False
) -> ProcessSpec:
    port = take_ports({"server": 0})["server"]
    note, grandchild = folder / f"{name}.pids", folder / f"{name}.child"
    argv = (sys.executable, "-S", "-c", SERVER, str(port), str(note), str(grandchild) if child else "")
    return _spec(folder, name, argv, port=port, after=after, heavy=heavy)


def crashing(folder: Path, name: str) -> ProcessSpec:
    return _spec(folder, name, (sys.executable, "-S", "-c", "print('no luck'); raise SystemExit(4)"), port=9)


def _spec(
    folder: Path, name: str, argv: tuple[str, ...], *, port: int, after: tuple[str, ...] = (), heavy: bool = False
) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        kind=Kind.ENGINE,
        argv=argv,
        environment={},
        log=folder / f"{name}.log",
        ready_url=f"http://127.0.0.1:{port}/",
        after=after,
        heavy=heavy,
        grace_seconds=2.0,
    )


def pids(folder: Path, name: str) -> list[int]:
    note = folder / f"{name}.pids"
    return [int(line) for line in note.read_text().split()] if note.exists() else []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():  # noqa: ASYNC110 - the condition is another process's doing
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(
    *specs: ProcessSpec, parallel_starts: int = 1, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[tuple[Supervisor, History]]:
    history: History = []

    def changed(spec: ProcessSpec, life: Life) -> None:
        history.append((spec.name, life.state))

    supervisor = Supervisor(specs, changed=changed, parallel_starts=parallel_starts, clock=clock)
    task = asyncio.create_task(supervisor.run())
    try:
        yield supervisor, history
    finally:
        supervisor.stop()
        await asyncio.wait_for(task, HANG_SECONDS)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_states, "FIRST_PAUSE_SECONDS", 0.05)


async def test_processes_start_in_order_and_all_become_ready(tmp_path: Path) -> None:
    async with running(server(tmp_path, "second", after=("first",)), server(tmp_path, "first")) as (fleet, history):
        assert await asyncio.wait_for(fleet.settled(), HANG_SECONDS)
    assert history[:4] == [
        ("first", State.STARTING),
        ("first", State.READY),
        ("second", State.STARTING),
        ("second", State.READY),
    ]
    assert {name for name, state in history if state is State.STOPPED} == {"first", "second"}


async def test_heavy_starts_take_turns(tmp_path: Path) -> None:
    specs = [server(tmp_path, name, heavy=True) for name in "abc"]
    async with running(*specs) as (fleet, history):
        assert await asyncio.wait_for(fleet.settled(), HANG_SECONDS)
    assert [state for _, state in history[:6]] == [State.STARTING, State.READY] * 3


async def test_a_killed_process_comes_back(tmp_path: Path) -> None:
    async with running(server(tmp_path, "one")) as (fleet, history):
        assert await asyncio.wait_for(fleet.settled(), HANG_SECONDS)
        os.kill(pids(tmp_path, "one")[0], signal.SIGKILL)
        await until(lambda: history.count(("one", State.READY)) == 2)
        assert fleet.lives["one"].exit_status == 137
    assert ("one", State.BACKING_OFF) in history
    assert all(map(gone, pids(tmp_path, "one")))


HEIR = """
import os, socket, time
if os.path.exists({note!r}): time.sleep(1)
open({note!r}, "a").write(f"{{os.getpid()}}\\n")
listener = socket.socket(fileno=int(os.environ["CACHEFLEET_SOCKETS"]))
listener.setblocking(True)
while True:
    client, _ = listener.accept()
    client.recv(4096)
    client.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n%d" % os.getpid())
    client.close()
"""


TWINS = """
import os, selectors, socket, sys
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
waiting = selectors.DefaultSelector()
for number in os.environ["CACHEFLEET_SOCKETS"].split(","):
    listener = socket.socket(fileno=int(number))
    listener.setblocking(False)
    waiting.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in waiting.select():
        try: client, _ = key.fileobj.accept()
        except BlockingIOError: continue
        client.setblocking(True)
        client.recv(4096)
        client.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n%d" % os.getpid())
        client.close()
"""


async def ask(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return int(answer.split(b"\r\n\r\n")[1])


async def test_a_socket_outlives_its_process_and_who_connects_meanwhile_is_answered(tmp_path: Path) -> None:
    port = take_ports({"server": 0})["server"]
    argv = (sys.executable, "-S", "-c", HEIR.format(note=str(tmp_path / "heir.pids")))
    spec = replace(_spec(tmp_path, "heir", argv, port=port), ports=(port,))
    async with running(spec) as (fleet, _):
        assert await asyncio.wait_for(fleet.settled(), HANG_SECONDS)
        first = await ask(port)
        assert [first] == pids(tmp_path, "heir")
        os.kill(first, signal.SIGKILL)
        await until(lambda: gone(first))  # before that it may take a connection with it
        later = await asyncio.gather(*(ask(port) for _ in range(20)))
        await until(lambda: len(pids(tmp_path, "heir")) == 2)
        assert set(later) == {pids(tmp_path, "heir")[1]}
    with pytest.raises(ConnectionRefusedError):
        await ask(port)


async def test_processes_of_one_port_share_its_socket_and_a_killed_one_leaves_nobody_waiting(tmp_path: Path) -> None:
    """Without the shared socket the second could not listen, or who comes waits for the first to be started again."""
    shared, *own = take_ports({"shared": 0, "first": 0, "second": 0}).values()
    specs = [
        replace(
            _spec(tmp_path, name, (sys.executable, "-S", "-c", TWINS, str(tmp_path / f"{name}.pids")), port=port),
            ports=(shared, port),
        )
        for name, port in zip(("first", "second"), own, strict=True)
    ]
    async with running(*specs) as (fleet, _):
        assert await asyncio.wait_for(fleet.settled(), HANG_SECONDS)
        first, second = (pids(tmp_path, name)[0] for name in ("first", "second"))
        assert set(await asyncio.gather(*(ask(shared) for _ in range(60)))) <= {first, second}
        os.kill(first, signal.SIGKILL)
        await until(lambda: gone(first))
        assert set(await asyncio.gather(*(ask(shared) for _ in range(20)))) <= {second, *pids(tmp_path, "first")}
        await until(lambda: len(pids(tmp_path, "first")) == 2)
    with pytest.raises(ConnectionRefusedError):
        await ask(shared)


async def test_one_that_says_no_is_not_ready_and_not_restarted(tmp_path: Path) -> None:
    async with running(server(tmp_path, "one")) as (fleet, history):
        assert await asyncio.wait_for(fleet.settled(), HANG_SECONDS)
        (tmp_path / "one.pids.unready").touch()
        await until(lambda: fleet.lives["one"].state is State.STARTING)
        (tmp_path / "one.pids.unready").unlink()
        await until(lambda: fleet.lives["one"].state is State.READY)
    assert len(pids(tmp_path, "one")) == 1
    assert history.count(("one", State.STARTING)) == 2


async def test_one_that_waits_for_another_is_not_ended_for_it_and_one_that_hangs_is(tmp_path: Path) -> None:
    now = [0.0]
    agent = server(tmp_path, "agent", after=("engine",))
    async with running(server(tmp_path, "engine"), agent, clock=lambda: now[0]) as (fleet, history):
        assert await asyncio.wait_for(fleet.settled(), HANG_SECONDS)
        for name in ("engine", "agent"):
            (tmp_path / f"{name}.pids.unready").touch()
        await until(lambda: {fleet.lives[name].state for name in ("engine", "agent")} == {State.STARTING})
        now[0] = agent.start_seconds - 1
        (tmp_path / "engine.pids.unready").unlink()
        await until(lambda: fleet.lives["engine"].state is State.READY)
        now[0] = 2 * agent.start_seconds - 2  # of these it hung for less than it may
        await asyncio.sleep(5)
        assert len(pids(tmp_path, "agent")) == 1
        now[0] = 2 * agent.start_seconds
        await until(lambda: history.count(("agent", State.BACKING_OFF)) == 1)


async def test_one_that_never_starts_fails_and_its_words_are_in_the_log(tmp_path: Path) -> None:
    async with running(crashing(tmp_path, "bad"), server(tmp_path, "good")) as (fleet, _):
        assert not await asyncio.wait_for(fleet.settled(), HANG_SECONDS)
        assert fleet.lives["bad"].state is State.FAILED
        assert fleet.lives["bad"].exit_status == 4
    assert (tmp_path / "bad.log").read_text() == "no luck\n" * process_states.FIRST_STARTS


async def test_nothing_is_left_after_a_stop_even_of_children_in_other_sessions(tmp_path: Path) -> None:
    async with running(server(tmp_path, "one", child=True)) as (fleet, _):
        assert await asyncio.wait_for(fleet.settled(), HANG_SECONDS)
        child = int((tmp_path / "one.child").read_text())
        assert not gone(child)
    assert all(map(gone, [child, *pids(tmp_path, "one")]))


async def test_stopping_before_anything_has_started_starts_nothing(tmp_path: Path) -> None:
    async with running(server(tmp_path, "late", after=("never",)), crashing(tmp_path, "never")) as (fleet, _):
        fleet.stop()
    assert pids(tmp_path, "late") == []
    assert fleet.lives["late"].state is State.STOPPED


OWNER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.local.supervise.test_supervisor import server
from cachefleet_local.supervise.supervisor import Supervisor
asyncio.run(Supervisor([server(Path({folder!r}), "one", child=True)], changed=lambda *_: None).run())
"""


async def test_a_killed_supervisor_leaves_nothing(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    owner = subprocess.Popen([sys.executable, "-c", OWNER.format(root=str(root), folder=str(tmp_path))])  # noqa: ASYNC220
    try:
        await until(lambda: (tmp_path / "one.child").exists() and (tmp_path / "one.child").read_text() != "")
        child = int((tmp_path / "one.child").read_text())
    finally:
        owner.kill()
        owner.wait()
    await until(lambda: all(map(gone, [child, *pids(tmp_path, "one")])))
