"""A plugin of pytest: a tier's run ends with its time and its slowest tests, and keeps how long every test took.

The tier is the name of the JUnit file that is asked for: ``--junitxml=.results/unit.xml``. Other runs are left alone.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.reporting import record
from tests.reporting.budgets import BY_NAME, Tier
from tests.reporting.closing import closing, is_over


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("reporting").addoption(
        "--results-in", metavar="FOLDER", help="put the JUnit file and the tests' durations into this folder instead"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before pytest's own plugin looks where the JUnit file is to be."""
    asked = config.option.xmlpath
    if not asked or hasattr(config, "workerinput"):
        return
    file = Path(config.option.results_in or Path(asked).parent, Path(asked).name)
    config.option.xmlpath = str(file)
    if tier := BY_NAME.get(file.stem):
        config.pluginmanager.register(Durations(tier, file.parent), "tier-durations")


class Durations:
    """Counts one run of a tier; with pytest-xdist in the process that the workers report to."""

    def __init__(self, tier: Tier, folder: Path) -> None:
        self._tier = tier
        self._folder = folder.absolute()
        self._started = time.monotonic()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._endings: dict[str, str] = {}
        self._skipped: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += getattr(report, "duration", 0.0)
        self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self._count(report)

    def _count(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Of set-up, call and clean-up the worst ending counts."""
        worst = ("passed", "skipped", "failed")
        before = self._endings.get(report.nodeid, "passed")
        self._endings[report.nodeid] = max(before, report.outcome, key=worst.index)
        if report.skipped:
            self._skipped[report.nodeid] = reason(report)

    def ended(self) -> record.Run:
        """What was counted until now."""
        failed = sorted(name for name, ending in self._endings.items() if ending == "failed")
        return record.Run(
            seconds=time.monotonic() - self._started,
            budget=self._tier.seconds,
            passed=sum(ending == "passed" for ending in self._endings.values()),
            failed=tuple(failed),
            skipped=dict(Counter(why for name, why in self._skipped.items() if self._endings[name] == "skipped")),
            tests=dict(self._seconds),
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """Last of all, so that only pytest's own closing line follows."""
        yield
        run = self.ended()
        record.keep(self._folder, self._tier.name, run)
        head, *slowest = closing(self._tier.name, run)
        terminalreporter.ensure_newline()
        terminalreporter.write_line(head, yellow=is_over(run.seconds, run.budget), bold=True)
        for line in slowest:
            terminalreporter.write_line(line)


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped, in its own words."""
    if hasattr(report, "wasxfail"):
        return f"fails as expected: {report.wasxfail}"
    longrepr = report.longrepr
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ")
