"""An engine's server ends once its worker is drained, whoever tells it to end and whatever a proxy would like."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from tests.fakes.secret_volume import SecretVolume, authority, issued

SERVER = """
import signal, sys, time, pathlib
def ended(*_):
    pathlib.Path("ended").write_text(str(time.monotonic()))
    sys.exit(7)
signal.signal(signal.SIGTERM, ended)
pathlib.Path("up").touch()
time.sleep(60)
"""


class Agent:
    """Answers a request to drain after some time; notes who asked for what."""

    def __init__(self, *, seconds: float = 0.0, status: int = 200, tls: Path | None = None) -> None:
        self.asked: list[str] = []
        self.done_at = 0.0
        agent = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                agent.asked.append(self.path)
                time.sleep(seconds)
                agent.done_at = time.monotonic()
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "tls.crt", tls / "tls.key")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://localhost:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def engine(folder: Path, url: str, text: str = SERVER, seconds: str = "30", **more: str) -> Iterator[subprocess.Popen]:  # type: ignore[type-arg]
    (folder / "slow_server.py").write_text(text)
    own = {
        "PYTHONPATH": os.pathsep.join((str(folder), *filter(None, sys.path))),
        "CACHEFLEET_DRAIN_URL": url + "/drain/x",
    }
    environment = os.environ | own | {"CACHEFLEET_DRAIN_SECONDS": seconds} | more
    script = "from cachefleet_worker.engine_start import main; main('slow_server')"
    with subprocess.Popen([sys.executable, "-c", script], cwd=folder, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def up(folder: Path) -> None:
    until((folder / "up").exists)


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("tls", [False, True])
def test_the_server_ends_once_the_agent_says_that_it_is_drained(tmp_path: Path, told: int, *, tls: bool) -> None:
    folder = SecretVolume(tmp_path / "tls", issued(authority())).folder if tls else None
    text = SERVER.replace("signal.SIGTERM", f"signal.{signal.Signals(told).name}")
    with Agent(seconds=1.5, tls=folder) as agent, engine(tmp_path, agent.url, text) as process:
        up(tmp_path)
        process.send_signal(told)
        until(lambda: agent.asked)
        process.send_signal(told)
        assert process.wait(30) == 7, "as the server did"
        assert agent.asked == ["/drain/x"]
        assert float((tmp_path / "ended").read_text()) >= agent.done_at


@pytest.mark.parametrize("status", [404, 500])
def test_an_agent_that_cannot_drain_holds_nothing_up(tmp_path: Path, status: int) -> None:
    with Agent(status=status) as agent, engine(tmp_path, agent.url) as process:
        up(tmp_path)
        process.terminate()
        assert process.wait(30) == 7


def test_an_agent_that_is_gone_or_hangs_holds_nothing_up_for_longer_than_a_drain(tmp_path: Path) -> None:
    with engine(tmp_path, "http://localhost:9") as process:
        up(tmp_path)
        process.terminate()
        assert process.wait(30) == 7
    (tmp_path / "up").unlink()
    with Agent(seconds=60) as agent, engine(tmp_path, agent.url, seconds="0.1") as process:
        up(tmp_path)
        process.terminate()
        assert process.wait(30) == 7


def test_no_proxy_of_the_environment_sees_the_request(tmp_path: Path) -> None:
    with Agent() as agent, Agent() as proxy:
        names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy")
        with engine(tmp_path, agent.url, **dict.fromkeys(names, proxy.url), NO_PROXY="", no_proxy="") as process:
            up(tmp_path)
            process.terminate()
            assert process.wait(30) == 7
        assert (len(agent.asked), proxy.asked) == (1, [])


@pytest.mark.parametrize(
    ("text", "status"),
    [("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137), ("raise SystemExit(3)", 3), ("", 0)],
)
def test_a_server_that_ends_by_itself_ends_all_as_it_did(tmp_path: Path, text: str, status: int) -> None:
    with Agent() as agent, engine(tmp_path, agent.url, text) as process:
        assert process.wait(30) == status
        assert agent.asked == []


def test_a_server_that_dies_while_it_drains_is_not_waited_for(tmp_path: Path) -> None:
    text = SERVER.replace("time.sleep(60)", "time.sleep(2); sys.exit(9)")
    with Agent(seconds=30) as agent, engine(tmp_path, agent.url, text) as process:
        up(tmp_path)
        process.terminate()
        assert process.wait(15) == 9
