"""``python -m bench.counted_process KIND FILE``: the control plane, counted: ``calls`` of Python, or ``instructions``.

No garbage is collected once it serves, hashes of texts are the same each time, and its clock goes SLOWER times slower,
since some requests do what is due by it: so what is counted depends on the requests alone. Calls are those of the main
thread, of functions and of what they call in C, with the bytecodes that are executed: at SIGUSR1 those since the last
one go to FILE, as JSON, by callback of the event loop and by function. Instructions are valgrind's, which
callgrind_control is asked for: it writes them to FILE and a number, those of each thread to a file of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NoReturn

SLOWER: Final = 50
"""Of the control plane's monotonic clock, not of the event loop's."""
CALLS: Final = "calls"
INSTRUCTIONS: Final = "instructions"
BYTECODES: Final = "bytecodes of "
"""Before a function's name: how many bytecodes it executes itself."""
_LAUNCHED: Final = "launched"
_LOOP: Final = asyncio.Runner.run.__code__
"""Whose frame stands under each callback of the event loop."""
_VALGRIND: Final = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes")


class CountedCalls:
    """Calls of the thread that makes it, by callback of the event loop and by function; and bytecodes likewise."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._callback: object = None
        self._calls: Counter[tuple[object, object]] = Counter()
        self._bytecodes: Counter[tuple[object, object]] = Counter()
        self._count()

    def _count(self) -> None:
        sys.setprofile(self._called)
        sys.settrace(self._traced)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._calls[self._callback, frame.f_code] += 1
        elif event == "c_call":
            self._calls[self._callback, getattr(argument, "__qualname__", "")] += 1

    def _traced(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        """As ``sys.settrace`` has it, which hears of a call before ``sys.setprofile``."""
        if event == "opcode":
            self._bytecodes[self._callback, frame.f_code] += 1
        elif event == "call":
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            if frame.f_back is not None and frame.f_back.f_code is _LOOP:
                self._callback = frame.f_code
        return self._traced

    def tell(self, *_: object) -> None:
        """Write what was counted, and begin anew."""
        sys.settrace(None)
        sys.setprofile(None)
        told: dict[str, Counter[str]] = {}
        for before, counted in (("", self._calls), (BYTECODES, self._bytecodes)):
            for (callback, function), times in counted.items():
                told.setdefault(_name(callback), Counter())[before + _name(function)] += times
            counted.clear()
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(told))
        part.rename(self._file)
        self._callback = None
        self._count()


def _name(code: object) -> str:
    """A function's file, from its package on, and its qualified name; of one in C the latter."""
    if not isinstance(code, CodeType):
        return str(code)
    path = Path(code.co_filename).parts
    package = next((at for at, part in enumerate(path) if part.startswith("cachefleet_")), -2)
    return f"{'/'.join(path[package:])}:{code.co_qualname}"


def _launch(kind: str, file: str) -> NoReturn:
    """Become what is counted: the same hashes of texts each time, and under valgrind where instructions are."""
    python = [sys.executable, "-m", __spec__.name, kind, file, _LAUNCHED]
    under = (*_VALGRIND, f"--callgrind-out-file={file}", f"--log-file={file}.log") if kind == INSTRUCTIONS else ()
    command = [*under, *python]
    os.execvpe(command[0], command, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - it has no shell's words


def _slow_clock() -> None:
    """Have what is imported from now on read a slower clock."""
    clock = time.monotonic
    time.monotonic = lambda: clock() / SLOWER


def main() -> int:
    """Serve; the exit status."""
    kind, file, *launched = sys.argv[1:]
    if not launched:
        _launch(kind, file)
    _slow_clock()
    from cachefleet_controlplane.wiring import replica_process  # noqa: PLC0415 - with that clock

    if kind == CALLS:
        signal.signal(signal.SIGUSR1, CountedCalls(Path(file)).tell)
    replica_process.GARBAGE = (0, 0, 0)  # type: ignore[misc]  # none is collected by itself
    return replica_process.main()


if __name__ == "__main__":
    sys.exit(main())
