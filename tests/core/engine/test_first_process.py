"""SIGTERM ends every process of ours at any moment of its start, also as a container's first process.

Moments are told by what /proc shows of a process, and not by time, which differs from machine to machine.
"""

from __future__ import annotations

import base64
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from cachefleet_core.engine.first_process import OPTIONS, PROGRAM, under_first_process
from cachefleet_local.fleet.ports import take_ports
from cachefleet_local.supervise import guard
from tests.controlplane.gateway.harness import FLEET_KEY
from tests.controlplane.wiring.test_control_plane import POOL_FILE

ROOT: Final = Path(__file__).parents[3]
TERM: Final = 1 << (signal.SIGTERM - 1)
SECONDS: Final = 60
"""A signal that is lost lets a worker's pod wait for 165 s: for all of its grace period."""
ENDED: Final = {0, 128 + signal.SIGTERM, -signal.SIGTERM}

_UP: Final = ("--gateway-port", "0", "--internal-port", "0", "--data-dir")

Moment = Callable[[subprocess.Popen[bytes], bool], bool]


def _program(process: subprocess.Popen[bytes], *, first: bool) -> int | None:
    """The program's own number: below ``unshare`` and the first process, or the process itself."""
    pid = process.pid
    for _ in range(2 if first else 0):
        below = _read(pid, f"task/{pid}/children").split()
        if not below:
            return None
        pid = int(below[0])
    return pid


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:  # it has ended, or not begun
        return ""


def _mask(pid: int | None, name: str) -> int:
    found = re.search(rf"^{name}:\s*([0-9a-f]+)$", _read(pid or 0, "status"), re.MULTILINE)
    return int(found[1], 16) if found else 0


def _begun(process: subprocess.Popen[bytes], first: bool) -> bool:  # noqa: FBT001 - a Moment
    """The program's first instruction can be next: it is what the process runs now."""
    pid = _program(process, first=first)
    return pid is not None and "python" in _read(pid, "comm")


def _loading(process: subprocess.Popen[bytes], first: bool) -> bool:  # noqa: FBT001 - a Moment
    """Python imports modules, the first that is a library of its own among them."""
    pid = _program(process, first=first)
    return pid is not None and "lib-dynload" in _read(pid, "maps")


def _handling(process: subprocess.Popen[bytes], first: bool) -> bool:  # noqa: FBT001 - a Moment
    """Python has a handler of its own."""
    return _begun(process, first) and bool(_mask(_program(process, first=first), "SigCgt") & TERM)


MOMENTS: Final[Mapping[str, Moment]] = {"begun": _begun, "loading": _loading, "handling": _handling}


def _environment(folder: Path) -> dict[str, str]:
    """What all of the processes need, where neither engine nor API server nor control plane answers."""
    (folder / "index.key").write_text(base64.urlsafe_b64encode(bytes(32)).decode())
    (folder / "fleet.key").write_text(FLEET_KEY.format())
    (folder / "pools.yaml").write_text(POOL_FILE)
    (folder / "endpoints.json").write_text("{}")
    (folder / "token").write_text("secret")
    (folder / "kubeconfig").write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],"
        " clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: u, user: {}}]}"
    )
    ports = take_ports({"gateway": 0, "internal": 0})
    values = {
        "WORKER": "demo-0",
        "POOL": "serving/demo",
        "ENGINE_URL": "http://127.0.0.1:9",
        "INDEX_KEY_FILE": folder / "index.key",
        "EVENTS_ENDPOINT": f"ipc://{folder}/events",
        "REPLAY_ENDPOINT": f"ipc://{folder}/replay",
        "DRAIN_SECONDS": "120",
        "AFTER_DRAIN": "stay",
        "HTTP_HOST": "127.0.0.1",
        "HTTP_PORT": "0",
        "AGENT_IMAGE": "cachefleet",
        "FLEET_KEY_FILE": folder / "fleet.key",
        "POOL_FILE": folder / "pools.yaml",
        "ENDPOINTS_FILE": folder / "endpoints.json",
        "ADMIN_TOKEN_FILE": folder / "token",
        "REPORTS_TOKEN_FILE": folder / "token",
        "DATA_DIR": folder / "data",
        "GATEWAY_PORT": ports["gateway"],
        "INTERNAL_PORT": ports["internal"],
        "WITHDRAW_SECONDS": "0",
    }
    named = {f"CACHEFLEET_{name}": str(value) for name, value in values.items()}
    return {**os.environ, **named, "KUBECONFIG": str(folder / "kubeconfig")}


def _commands(folder: Path) -> dict[str, list[str]]:
    python = sys.executable
    return {
        "agent": [python, "-m", "cachefleet_worker.agent"],
        "operator": [python, "-m", "cachefleet_operator"],
        "control plane": [python, "-m", "cachefleet_controlplane"],
        "plugin": [python, "-m", "cachefleet_worker.plugin_install", str(folder / "plugin")],
        "engine": [python, "-c", "from cachefleet_worker.engine_start import main; main('slow_server')"],
        "guard": [python, "-I", "-S", guard.__file__, "1", "sleep", "300"],
        "up": [
            python,
            "-m",
            "cachefleet_local",
            "up",
            str(ROOT / "examples" / "demo.yaml"),
            *_UP,
            str(folder / "fleet"),
        ],
    }


@contextmanager
def _started(command: list[str], folder: Path, *, first: bool) -> Iterator[subprocess.Popen[bytes]]:
    environment = _environment(folder)
    (folder / "slow_server.py").write_text("import time\ntime.sleep(300)\n")
    environment["PYTHONPATH"] = os.pathsep.join((str(folder), *filter(None, sys.path)))
    if first:
        tool = shutil.which(PROGRAM, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
        assert tool, f"{PROGRAM} is not installed: make setup"
        inside = under_first_process(command, str(Path(tool).parent))
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *inside]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _told(process: subprocess.Popen[bytes], *, first: bool) -> int:
    """Send SIGTERM as a kubelet would, to the container's first process; its exit status."""
    below = _read(process.pid, f"task/{process.pid}/children").split() if first else [str(process.pid)]
    os.kill(int(below[0]), signal.SIGTERM)
    return process.wait(SECONDS)


def _until(moment: Moment, process: subprocess.Popen[bytes], *, first: bool) -> bool:
    """Wait for a moment; False where the process has ended before."""
    deadline = time.monotonic() + SECONDS
    while not moment(process, first):
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    return True


ROOT_ONLY: Final = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a process a namespace's first")
SERVERS: Final = ("agent", "operator", "control plane")
CASES: Final = [
    *((name, moment, True) for name in SERVERS for moment in MOMENTS),
    *((name, moment, True) for name in ("plugin", "engine") for moment in ("begun", "loading")),
    *(("up", moment, True) for moment in MOMENTS),
    *(("guard", moment, False) for moment in ("begun", "handling")),
    ("up", "handling", False),
]


@pytest.mark.parametrize(
    ("name", "moment", "first"), [pytest.param(*case, marks=[ROOT_ONLY] if case[2] else []) for case in CASES]
)
def test_sigterm_ends_it_at_each_moment_of_its_start(name: str, moment: str, first: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter of the test
    with _started(_commands(tmp_path)[name], tmp_path, first=first) as process:
        assert _until(MOMENTS[moment], process, first=first), (tmp_path / "log").read_text()
        assert _told(process, first=first) in ENDED, (tmp_path / "log").read_text()


@ROOT_ONLY
@pytest.mark.slow
@pytest.mark.parametrize("name", [*SERVERS, "up"])
def test_sigterm_ends_it_at_any_time(name: str, tmp_path: Path) -> None:
    """Also between the moments that /proc shows."""
    for attempt in range(40):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with _started(_commands(folder)[name], folder, first=True) as process:
            assert _until(_begun, process, first=True)
            time.sleep(random.uniform(0, 4))
            assert _told(process, first=True) in ENDED, (folder / "log").read_text()


def test_the_image_begins_with_it() -> None:
    text = (ROOT / "images" / "cachefleet" / "Dockerfile").read_text()
    assert f'ENTRYPOINT ["/opt/cachefleet/bin/{PROGRAM}", "{OPTIONS[0]}", "{OPTIONS[1]}"]' in text
    assert re.search(rf"^{PROGRAM}==", (ROOT / "requirements" / "image.txt").read_text(), re.MULTILINE)
