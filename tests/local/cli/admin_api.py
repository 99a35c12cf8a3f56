"""An admin API that answers what a test says, and commands that are run against it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "t0ken"


class AdminApi:
    """Answers by path below ``/admin/v1``; what is not there is a 404, what is a number is that status."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.token = TOKEN
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def items(self, path: str, *items: Mapping[str, Any]) -> None:
        self.answers[path] = {"items": list(items)}

    @contextmanager
    def serving(self) -> Iterator[None]:
        """On the same port each time."""
        server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        self.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _handler(api: AdminApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            api.asked.append(self.path)
            path = self.path.removeprefix("/admin/v1/").partition("?")[0]
            answer = api.answers.get(path, 404)
            if path != "/readyz" and self.headers["Authorization"] != f"Bearer {api.token}":
                answer = 401
            status, body = (
                (answer, {"detail": f"no {path}", "errors": []}) if isinstance(answer, int) else (200, answer)
            )
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            return

    return Handler


def environment(api: AdminApi, folder: Path, **more: str) -> dict[str, str]:
    """Of a command that asks this API."""
    (folder / "token").write_text(TOKEN)
    own = {"CACHEFLEET_ADMIN_URL": api.url, "CACHEFLEET_ADMIN_TOKEN_FILE": str(folder / "token"), "HOME": str(folder)}
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("CACHEFLEET_", "XDG_", "NO_COLOR"))
    }
    return kept | own | more


@contextmanager
def started(*words: str, env: Mapping[str, str], **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own, which does not outlive the context."""
    command = [sys.executable, "-m", "cachefleet_local", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | more
    with subprocess.Popen(command, env=dict(env), text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def ran(*words: str, env: Mapping[str, str]) -> tuple[int, str, str]:
    """What a command printed, and its exit status."""
    with started(*words, env=env) as process:
        out, err = process.communicate(timeout=120)
    return process.returncode, out, err
