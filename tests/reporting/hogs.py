"""Programs that end with this process, also when it is killed: a tier under the guard, and processes that eat CPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from cachefleet_local.supervise import guard

GRACE_SECONDS: Final = 20.0
"""For tests that were asked to end, to end what they started."""
_BUSY: Final = (sys.executable, "-I", "-S", "-c", "while True: pass")


@contextmanager
def hogs(number: int) -> Iterator[list[int]]:
    """So many busy processes; the identifiers of their guards."""
    with ExitStack() as stack:
        started = [stack.enter_context(guarded(_BUSY, grace=0.0)) for _ in range(number)]
        yield [process.pid for process in started]


@contextmanager
def guarded(
    command: Sequence[str],
    *,
    log: Path = Path("/dev/null"),
    environment: Mapping[str, str] | None = None,
    grace: float = GRACE_SECONDS,
) -> Iterator[subprocess.Popen[bytes]]:
    """A command that writes to a file; on leaving, nothing that it started is left."""
    program = [sys.executable, "-I", "-S", guard.__file__, str(grace), *command]
    with log.open("wb") as output:
        process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
