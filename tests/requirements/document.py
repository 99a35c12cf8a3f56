"""docs/requirements.md: each requirement, the tests that show it, and how these ended where they were last run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.requirements.found import ROOT, Shown
from tests.requirements.table import NOTES, REQUIREMENTS

DOCUMENT: Final = ROOT / "docs" / "requirements.md"
HEAD: Final = """\
# Requirements and the tests that show them

Written by `make requirements-table` from the tests' names and marks and from the results of the last `make test` in the
same folder. A: response token cache, B: cache-hit threshold, C: prefix KV cache. *Not run* means that there was no
result at hand: tests marked `slow` are part of `make nightly` alone.

| | requirement | shown by | result |
|---|---|---|---|
"""
NOT_RUN: Final = "not run"

Results = Mapping[Shown, Counter[str]]


def results(files: Iterable[Path]) -> Results:
    """How tests ended, as pytest's JUnit files tell; of a test in several files the last one counts."""
    found: dict[Shown, Counter[str]] = {}
    for file in files:
        found |= _run(file)
    return found


def _run(file: Path) -> dict[Shown, Counter[str]]:
    """Of a test with parameters all of its runs."""
    ended: dict[Shown, Counter[str]] = {}
    for case in ET.parse(file).iter("testcase"):  # noqa: S314 - pytest's own
        ended.setdefault(_test(case), Counter())[_ending(case)] += 1
    return ended


def document(tests: Mapping[str, Sequence[Shown]], ended: Results) -> str:
    """The whole page."""
    numbers = sorted({*REQUIREMENTS, *NOTES}, key=lambda number: (number[0], int(number[1:])))
    return HEAD + "".join(f"{_line(number, tests.get(number, ()), ended)}\n" for number in numbers)


def without_results(page: str) -> list[str]:
    """What of a page does not depend on where tests were run."""
    return [re.sub(r"\|[^|]*\|$", "|", line) for line in page.splitlines()]


def _line(number: str, tests: Sequence[Shown], ended: Results) -> str:
    what = REQUIREMENTS.get(number, NOTES.get(number, ""))
    if not tests:
        return f"| {number} | {what} | {NOTES.get(number, '**no test**') if number in REQUIREMENTS else ''} | |"
    what += f" (gap: {NOTES[number]})" if number in NOTES else ""
    return f"| {number} | {what} | {'<br>'.join(map(_link, tests))} | {_result(tests, ended)} |"


def _link(test: Shown) -> str:
    return f"[{test.name.rpartition('::')[2].removeprefix('test_')}](../{test.file})"


def _result(tests: Sequence[Shown], ended: Results) -> str:
    counted: Counter[str] = Counter()
    for test in tests:
        counted += ended.get(test, Counter({NOT_RUN: 1}))
    return ", ".join(f"{number} {name}" for name, number in sorted(counted.items()))


def _test(case: ET.Element) -> Shown:
    """JUnit has no path: ``classname`` is the module with dots, and the class."""
    parts = case.get("classname", "").split(".")
    place = next((at for at, part in enumerate(parts) if part.startswith("test_")), len(parts) - 1)
    name = case.get("name", "").partition("[")[0]
    return Shown("/".join(parts[: place + 1]) + ".py", "::".join([*parts[place + 1 :], name]))


def _ending(case: ET.Element) -> str:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in kinds else "passed"
