"""``python -m bench.profile_sampler FILE``: the control plane, with samples of where its main thread computes.

A timer of the thread's own CPU time interrupts it; the kernel looks at such timers once a tick, so that is some
hundred times in a second of CPU. Python hears of an interruption when native code has returned, in its caller's frame.
What the event loop itself takes, and what it does with sockets, shows as an interruption at the very first instruction
of a callback. At SIGUSR1 what was counted since the last one goes to FILE, as JSON: samples by part and by function.
"""

from __future__ import annotations

import ctypes
import dis
import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from bench.profile_parts import LOOP, Place, part_of
from cachefleet_controlplane.wiring.replica_process import main

INTERVAL_NANOSECONDS: Final = 1_000_000
_THREAD_CPU_CLOCK: Final = 3
_RESUME: Final = dis.opmap["RESUME"]
_RUNNERS: Final = frozenset({"uvloop", "asyncio.runners"})
"""Modules whose frames stand under each callback of the event loop."""


class Sampler:
    """Counts samples."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._parts: Counter[str] = Counter()
        self._functions: Counter[str] = Counter()

    def sample(self, _number: int, frame: FrameType | None) -> None:
        """Count where the thread is."""
        stack = list(_callback(frame))
        if not stack or (len(stack) == 1 and stack[0].f_code.co_code[stack[0].f_lasti] == _RESUME):
            self._parts[LOOP] += 1
            return
        places = [_place(each) for each in stack]
        part = part_of(places)
        self._parts[part] += 1
        self._functions[f"{part}\t{':'.join(places[0])}"] += 1

    def tell(self, *_: object) -> None:
        """Write what was counted, and begin anew."""
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps({"parts": self._parts, "functions": self._functions}))
        part.rename(self._file)
        self._parts.clear()
        self._functions.clear()


def _callback(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the event loop's present callback, innermost first."""
    while frame is not None and _module(frame) not in _RUNNERS:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType) -> Place:
    return _module(frame), frame.f_code.co_qualname


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


class _Event(ctypes.Structure):
    """``struct sigevent``."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("pad", ctypes.c_char * 48),
    )


class _Span(ctypes.Structure):
    """``struct itimerspec``: the interval, and the first time."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns"))


def start_timer() -> None:
    """Send this process SIGPROF for each INTERVAL_NANOSECONDS that this thread computes. OSError."""
    libc, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
    event = _Event(signal=signal.SIGPROF, notify=0)
    span = _Span(every_ns=INTERVAL_NANOSECONDS, first_ns=INTERVAL_NANOSECONDS)
    failed = libc.timer_create(_THREAD_CPU_CLOCK, ctypes.byref(event), ctypes.byref(timer))
    if failed or libc.timer_settime(timer, 0, ctypes.byref(span), None):
        raise OSError(ctypes.get_errno(), "no timer of the thread's CPU time")


if __name__ == "__main__":
    sampler = Sampler(Path(sys.argv.pop()))
    signal.signal(signal.SIGPROF, sampler.sample)
    signal.signal(signal.SIGUSR1, sampler.tell)
    start_timer()
    sys.exit(main())
