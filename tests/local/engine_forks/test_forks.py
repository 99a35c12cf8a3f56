"""Forks in place of engines: what a fork server passes on, and what it leaves behind. No vLLM is in them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from cachefleet_local.engine_forks import fork_client
from cachefleet_local.engine_forks.fork_client import ACCEPTED, MAX_MESSAGE, MODULE
from cachefleet_local.engine_forks.fork_server import FIXED

PATIENCE_SECONDS: Final = 60.0
SERVER: Final = textwrap.dedent(
    """
    import os, subprocess, sys, tempfile, time
    from cachefleet_local.engine_forks.fork_server import listening, serve

    def engine():
        print("arguments", *sys.argv[1:])
        print("said", os.environ.get("SAID"), "in", os.getcwd(), "and", tempfile.gettempdir(), file=sys.stderr)
        if "--fail" in sys.argv:
            raise ZeroDivisionError
        if "--exit" in sys.argv:
            sys.exit(7)
        if "--serve" in sys.argv:
            child = subprocess.Popen(["sleep", "600"])
            print("serving", os.getpid(), child.pid, flush=True)
            time.sleep(600)

    tempfile.gettempdir()  # as one of vLLM's modules may have done
    serve(listening(sys.argv[1]), engine)
    """
)


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("forks") / "socket"
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(path)])
    try:
        until(lambda: path.exists() or server.poll() is not None)
        yield path
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def client(socket_path: Path) -> list[str]:
    """The beginning of a command line, as of an interpreter."""
    return interpreter(socket_path)


def interpreter(socket_path: Path) -> list[str]:
    return [sys.executable, "-I", "-S", fork_client.__file__, str(socket_path), sys.executable]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ran(command: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | more
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)


def serving(client: list[str]) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A client, with its engine and the engine's own child."""
    process = subprocess.Popen([*client, "-m", MODULE, "--serve"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "arguments --serve\n"
    return process, [psutil.Process(int(pid)) for pid in process.stdout.readline().split()[1:]]


def ended(process: subprocess.Popen[str]) -> int:
    with process:
        return process.wait(PATIENCE_SECONDS)


def test_an_engine_has_the_clients_arguments_environment_folder_and_log(client: list[str], tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    done = ran([*client, "-m", MODULE, "--port", "1"], tmp_path, SAID="this", TMPDIR=str(tmp_path / "own"))
    assert (done.returncode, done.stdout) == (0, "arguments --port 1\n")
    assert done.stderr == f"said this in {tmp_path} and {tmp_path / 'own'}\n"


@pytest.mark.parametrize(("argument", "status"), [("--exit", 7), ("--fail", 1)])
def test_an_exit_status_comes_back(client: list[str], tmp_path: Path, argument: str, status: int) -> None:
    done = ran([*client, "-m", MODULE, argument], tmp_path)
    assert done.returncode == status
    assert ("ZeroDivisionError" in done.stderr) == (argument == "--fail")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_engine_and_nothing_is_left(client: list[str], number: signal.Signals) -> None:
    process, family = serving(client)
    process.send_signal(number)
    assert ended(process) in (-number, 1)
    assert not any(one.is_running() for one in family), "gone before the client is"


def test_a_signal_before_the_client_knows_of_its_engine_reaches_it(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        process = subprocess.Popen([*interpreter(path), "-m", MODULE], text=True)
        server, _ = listener.accept()
        with server:
            for descriptor in socket.recv_fds(server, MAX_MESSAGE, 2)[1]:
                os.close(descriptor)
            process.send_signal(signal.SIGTERM)
            server.send(ACCEPTED)
            assert server.recv(MAX_MESSAGE) == b"%d" % signal.SIGTERM
            server.send(b"%d" % -signal.SIGTERM)
            assert ended(process) == -signal.SIGTERM


def test_a_killed_engine_ends_its_client_likewise(client: list[str]) -> None:
    process, (engine, child) = serving(client)
    engine.kill()
    assert ended(process) == -signal.SIGKILL
    assert not child.is_running()


def test_a_killed_client_leaves_no_engine(client: list[str]) -> None:
    process, family = serving(client)
    process.kill()
    ended(process)
    until(lambda: not any(one.is_running() for one in family))


@pytest.mark.parametrize("name", FIXED)
def test_an_environment_of_other_imports_gets_an_interpreter(client: list[str], tmp_path: Path, name: str) -> None:
    done = ran([*told(client), "-m", MODULE, "--port", "1"], tmp_path, **{name: "other"})
    assert done.stdout == f"-m {MODULE} --port 1\n"


def test_another_vllm_on_the_path_gets_an_interpreter(client: list[str], tmp_path: Path) -> None:
    (tmp_path / "other" / "vllm").mkdir(parents=True)
    done = ran([*told(client), "-m", MODULE], tmp_path, PYTHONPATH=str(tmp_path / "other"))
    assert done.stdout == f"-m {MODULE}\n"


def test_any_other_command_is_pythons(client: list[str], tmp_path: Path) -> None:
    done = ran([*client, "-c", "import sys; print(sys.argv)", "one"], tmp_path)
    assert done.stdout == "['-c', 'one']\n"


def test_without_a_server_an_engine_starts_by_itself(client: list[str], tmp_path: Path) -> None:
    alone = [str(tmp_path / "gone") if part.endswith("/socket") else part for part in client]
    done = ran([*told(alone), "-m", MODULE], tmp_path)
    assert done.stdout == f"-m {MODULE}\n"
    assert "the fork server cannot be asked, vLLM starts by itself" in done.stderr


def told(client: list[str]) -> list[str]:
    """The same with an interpreter that says what it would run."""
    echo = shutil.which("echo")
    assert echo
    return [*client[:-1], echo]
