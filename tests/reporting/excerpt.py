"""A failure in few lines: what of its traceback, of its engine's log and of captured output is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LINES: Final = 58
"""Of one failed test in all, headings included."""
HEADINGS: Final = 2
"""The test's name and, with pytest-xdist, the worker it ran on."""
ENGINE_LINES: Final = 15
CAPTURED_LINES: Final = 12
"""More where the traceback leaves them."""
MAX_SECTIONS: Final = 3
"""Of output, and of logs."""
WIDTH: Final = 240
ALONE: Final = "run it alone"
_CAPTURED: Final = "Captured "

Section = tuple[str, str]
"""A title and a text."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What pytest prints of a test that failed."""

    trace: list[str]
    sections: Sequence[Section]


def excerpt(failure: Failure, command: str) -> Failure:
    """At most ``LINES`` lines: the command, the engine's last ones, the last output; the traceback has the others."""
    logs = _last([section for section in failure.sections if not section[0].startswith(_CAPTURED)], ENGINE_LINES)
    last = [*logs, (ALONE, command)]
    room = LINES - HEADINGS - sum(map(_lines, last))
    captured = [section for section in failure.sections if section[0].startswith(_CAPTURED)]
    shown = _last(captured, max(CAPTURED_LINES, room - len(failure.trace)))
    return Failure(shortened(failure.trace, room - sum(map(_lines, shown))), [*shown, *last])


def shortened(trace: Sequence[str], room: int) -> list[str]:
    """A traceback's beginning, the first lines of what was raised last, and its end."""
    if len(trace) <= room:
        return [cut(line) for line in trace]
    part = (room - 2) // 3  # two lines tell of gaps
    raised = _raised(trace)
    kept = {*range(part), *range(raised, raised + part), *range(len(trace) - part, len(trace))}
    return _with_gaps(trace, sorted(number for number in kept if number < len(trace)))


def cut(line: str) -> str:
    """A line that a screen can show."""
    return line if len(line) <= WIDTH else f"{line[:WIDTH]}... ({len(line) - WIDTH} characters more)"


def _raised(trace: Sequence[str]) -> int:
    """Where pytest's ``E`` lines of the last exception begin."""
    starts = [at for at, line in enumerate(trace) if _tells(line) and not (at and _tells(trace[at - 1]))]
    return starts[-1] if starts else 0


def _tells(line: str) -> bool:
    return line == "E" or line.startswith("E ")


def _with_gaps(trace: Sequence[str], kept: Sequence[int]) -> list[str]:
    shown: list[str] = []
    for before, number in zip((-1, *kept), kept, strict=False):
        if number - before > 1:
            shown.append(f"... {number - before - 1} lines more (with -vv, and in the JUnit file) ...")
        shown.append(cut(trace[number]))
    return shown


def _last(sections: Sequence[Section], room: int) -> list[Section]:
    """The ends of the latest sections, each with its title; what one leaves of its share the others may use."""
    latest = [(title, text.rstrip("\n").splitlines()) for title, text in sections if text.strip()][-MAX_SECTIONS:]
    shown: dict[int, Section] = {}
    shortest_first = sorted(range(len(latest)), key=lambda at: len(latest[at][1]))
    for done, at in enumerate(shortest_first):
        title, lines = latest[at]
        share = min(len(lines), room // (len(latest) - done) - 1)
        shown[at] = (title, "\n".join(map(cut, lines[-share:])))
        room -= share + 1
    return [shown[at] for at in range(len(latest))]


def _lines(section: Section) -> int:
    return 1 + len(section[1].splitlines())
