from __future__ import annotations

import signal
import subprocess
import sys

from tests.requirements.found import ROOT

IGNORED = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
TESTS = "import conftest, os, signal; os.kill(os.getpid(), signal.SIGINT)"


def test_they_arrive_in_a_test_run_that_was_started_in_the_background() -> None:
    """So does a shell's ``&``, and what ignores a signal leaves that to all that it starts."""
    command = [sys.executable, "-c", IGNORED, sys.executable, "-c", TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == -signal.SIGINT, done.stderr
