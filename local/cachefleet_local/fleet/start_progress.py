"""What a starting process is doing, by its log, and how long its start took last time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cachefleet_local.fleet.data_folder import PRIVATE, write_whole
from cachefleet_local.supervise.process_spec import Kind, ProcessSpec
from cachefleet_local.supervise.process_states import Life, State

LAST_LINES: Final = 12
"""Last lines of a log that are shown when its process has failed."""
CAUSES: Final = 3
"""Earlier lines of it that name an error: vLLM's own cause stands before the failures that followed from it."""
READ_BYTES: Final = 256 * 1024
"""Of a log, its end."""
MAX_TIMES: Final = 256
"""Processes whose times are kept."""
_STAGES: Final = (
    (r"non-default args|Resolved architecture", "reading the model's configuration"),
    (r"Downloading|Fetching \d+ files", "downloading the model"),
    (r"Initializing a V1 LLM engine", "starting the engine core"),
    (r"Starting to load model|Loading \S+ checkpoint shards", "loading weights"),
    (r"Loading weights took|Model loading took", "preparing the model"),
    (r"Using cache directory|Dynamo bytecode|Compiling a graph|torch\.compile takes", "compiling"),
    (r"Capturing CUDA graphs|Capturing the model", "capturing CUDA graphs"),
    (r"KV cache size|# \w+ blocks", "making the KV cache"),
    (r"init engine .*took", "opening its port"),
)
"""Lines of vLLM's log, in their order, and what comes after each."""
_PATTERNS: Final = tuple((re.compile(pattern), words) for pattern, words in _STAGES)
_ERROR: Final = re.compile(r"\b[A-Z]\w*(?:Error|Exception): ")


def stage(text: str) -> str:
    """The furthest start-up stage that an engine's log shows."""
    return next((words for pattern, words in reversed(_PATTERNS) if pattern.search(text)), "importing vLLM")


def last_words(text: str) -> list[str]:
    """The end of a failed process's log, after earlier lines that name an error."""
    lines = text.splitlines()
    earlier, end = lines[:-LAST_LINES], lines[-LAST_LINES:]
    causes = [line for line in dict.fromkeys(earlier) if _ERROR.search(line) and line not in end]
    return [*causes[-CAUSES:], *end] or ["(no log)"]


def read_end(log: Path, *, since: int = 0) -> str:
    """The end of a log, at most from byte ``since``; "" where it cannot be read."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(since, size - READ_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


class StartProgress:
    """Follows the starts of processes; their times are kept in ``times_file`` for the next run."""

    def __init__(self, times_file: Path) -> None:
        self._file = times_file
        self.usual = _read_times(times_file)
        self._offsets: dict[str, int] = {}
        self._began: dict[str, float] = {}

    def changed(self, spec: ProcessSpec, life: Life) -> None:
        """Take note of a process's new state."""
        if life.state is State.STARTING and not life.was_ready:
            self._began[spec.name] = life.since
            self._offsets[spec.name] = _size(spec.log)
        elif life.state is State.READY and (began := self._began.pop(spec.name, None)) is not None:
            self.usual[spec.name] = round(life.since - began, 1)

    def save(self) -> None:
        """Keep the times. OSError."""
        kept = dict(list(self.usual.items())[-MAX_TIMES:])
        write_whole(self._file, json.dumps(kept, indent=2) + "\n", mode=PRIVATE)

    def lines(self, specs: Sequence[ProcessSpec], lives: Mapping[str, Life], now: float) -> list[str]:
        """One line for each process that is starting."""
        return [
            f"{spec.name}: {self._doing(spec)} for {now - lives[spec.name].since:.0f} s{self._usually(spec)};"
            f" log: {spec.log}"
            for spec in specs
            if lives[spec.name].state is State.STARTING
        ]

    def last_lines(self, spec: ProcessSpec) -> list[str]:
        """The last lines of this start's log."""
        return last_words(read_end(spec.log, since=self._offsets.get(spec.name, 0)))

    def _doing(self, spec: ProcessSpec) -> str:
        if spec.kind is not Kind.ENGINE:
            return "starting"
        return stage(read_end(spec.log, since=self._offsets.get(spec.name, 0)))

    def _usually(self, spec: ProcessSpec) -> str:
        seconds = self.usual.get(spec.name)
        return "" if seconds is None else f" (its start took {seconds:.0f} s last time)"


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _read_times(file: Path) -> dict[str, float]:
    try:
        told = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(told, dict):
        return {}
    return {str(name): float(seconds) for name, seconds in told.items() if isinstance(seconds, int | float)}
