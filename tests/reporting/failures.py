"""A plugin of pytest: a failed test is shown in under 60 lines, with its engine's log and how to run it alone.

Only what the terminal shows is shortened, after other plugins have read the reports; ``-vv`` shows failures whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from tests.reporting.command import alone
from tests.reporting.excerpt import Failure, Section, cut, excerpt

CLOCKS_DIFFER_SECONDS: Final = 1.0
"""A file system stamps what is written with a clock that may be behind."""
MAX_LOGS: Final = 2
TAIL_BYTES: Final = 6000
WHOLE: Final = 1
"""From this verbosity on (``-v``, or ``-q -vv``) nothing is shortened."""
_started: Final = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and config.option.verbose < WHOLE:
        config.pluginmanager.register(Shortening(config), "shortened-failures")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_started] = time.time() - CLOCKS_DIFFER_SECONDS


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test with engines or servers of its own shows their logs; that of a shared engine is there already."""
    report = yield
    if report.failed and not any(_is_log(title) for title, _ in report.sections):
        report.sections.extend(_logs(item))
    return report


class Shortening:
    """Replaces what a failed report shows; with pytest-xdist where the workers' reports arrive."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, None, None]:
        yield
        self._shorten(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> Generator[None, None, None]:
        yield
        self._shorten(report)

    def _shorten(self, report: Any) -> None:
        if not report.failed:
            return
        seed: Any = self._config.getoption("randomly_seed", default=None)
        command = alone(report.nodeid, seed=seed, environment=os.environ)
        shown = excerpt(Failure(report.longreprtext.splitlines(), report.sections), command)
        report.longrepr = Shortened(shown.trace, _crash(report.longrepr))
        report.sections = list(shown.sections)


@dataclass(frozen=True, slots=True)
class Shortened:
    """What pytest calls a ``longrepr``: it prints itself, and knows the message for the list at the end."""

    trace: list[str]
    reprcrash: Any

    def toterminal(self, writer: Any) -> None:
        for line in self.trace:
            writer.line(line, red=line.startswith("E"), bold=line.startswith("E"))

    def __str__(self) -> str:
        return "\n".join(self.trace)


def _crash(longrepr: Any) -> Any:
    """Where and what was raised, in one line."""
    crash: Any = getattr(longrepr, "reprcrash", None)
    if not (crash and crash.message):
        return crash
    return SimpleNamespace(path=crash.path, lineno=crash.lineno, message=cut(crash.message.splitlines()[0]))


def _logs(item: pytest.Item) -> list[Section]:
    """The logs in the run's temporary folder that this test's programs wrote to, the latest last."""
    folder = _temporary(item)
    started = item.stash.get(_started, None)
    if folder is None or started is None:
        return []
    try:
        written = sorted((path.stat().st_mtime, path) for path in folder.rglob("*.log") if path.is_file())
        latest = [path for when, path in written if when >= started][-MAX_LOGS:]
        return [(f"{path.relative_to(folder)} log", _tail(path)) for path in latest]
    except OSError:  # something that still ends removes its files
        return []


def _temporary(item: pytest.Item) -> Path | None:
    """Asked of the configuration, as a test's own fixtures may be what failed."""
    factory: Any = getattr(item.config, "_tmp_path_factory", None)
    return factory.getbasetemp() if factory else None


def _tail(path: Path) -> str:
    return path.read_bytes()[-TAIL_BYTES:].decode(errors="replace")


def _is_log(title: str) -> bool:
    return title.endswith(" log") and not title.startswith("Captured ")
