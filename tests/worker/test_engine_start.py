"""A server that is still loading can be stopped, though it is the first process of its container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cachefleet_worker.engine_start import ENDED

LOADING = "print('loading', flush=True)\nimport time\ntime.sleep(300)\n"


def _command(folder: Path, text: str) -> tuple[list[str], dict[str, str]]:
    (folder / "slow_server.py").write_text(text)
    script = "from cachefleet_worker.engine_start import main; main('slow_server')"
    path = os.pathsep.join((str(folder), *filter(None, sys.path)))
    return [sys.executable, "-c", script, "--port", "1"], {**os.environ, "PYTHONPATH": path}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a process the first one of a namespace")
def test_a_server_that_loads_ends_when_it_is_told_to(tmp_path: Path) -> None:
    command, environment = _command(tmp_path, LOADING)
    process = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", *command], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == "loading\n"
        inner = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(inner[0]), signal.SIGTERM)
        assert process.wait(60) == ENDED


def test_the_server_is_run_as_a_program_with_its_arguments(tmp_path: Path) -> None:
    command, environment = _command(tmp_path, "import sys\nprint(__name__, __spec__.name, sys.argv[1:])\n")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "__main__ slow_server ['--port', '1']\n"
