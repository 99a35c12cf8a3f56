"""docs/reliability.md: each fault, how it is injected, what holds, the tests that show it, and what was measured."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.chaos.measurements import ROOT, Measurement, in_words
from tests.chaos.rows import QUICK, ROWS, Row

PAGE: Final = ROOT / "docs" / "reliability.md"
HEAD: Final = """\
# Faults and what holds

Thirty-one faults, each injected for real: into processes of a fleet on one machine (replicas of the control plane, real
agents, fake engines that speak vLLM's protocols), into a real Kubernetes API server, or into real vLLM. A scenario is
load, fault, heal, and then five things are asserted of the whole fleet:

- *sound*: an engine serves from its cache at least what was predicted of it;
- *available*: no request fails for want of knowledge of caches;
- *isolated*: what one tenant has cached is as new to another;
- *convergent*: each replica holds of each worker exactly what its engine does, within the row's budget of time;
- *bounded*: memory, descriptors, tasks and requests under way are what they were.

`make chaos` runs all of them and writes this page (half an hour; `ROUNDS=3`: three times); a missed budget fails. Rows
with a dot are part of `make test`, all of `make nightly`. *Measured* is the last run on 2 cores beside other work: with
several rounds or parameters the least and the most. `make chaos` runs the lengths of the nights but for row 31, which
it gives five minutes.

| | fault | injected | what holds | tests | measured |
|---|---|---|---|---|---|
"""


def page(measurements: Sequence[Measurement], before: str = "") -> str:
    """All of it; of rows that were not measured now, what the page said ``before``."""
    kept = _measured(before)
    return HEAD + "".join(f"{_line(row, measurements, kept)}\n" for row in ROWS)


def without_measured(text: str) -> list[str]:
    """What of a page does not depend on a run."""
    return [re.sub(r"\|[^|]*\|$", "|", line) for line in text.splitlines()]


def _measured(text: str) -> Mapping[int, str]:
    lines = (re.match(r"\| •? ?(\d+) \|.*\| ([^|]*) \|$", line) for line in text.splitlines())
    return {int(line[1]): line[2] for line in lines if line}


def _line(row: Row, measurements: Sequence[Measurement], kept: Mapping[int, str]) -> str:
    told = in_words([one for one in measurements if one.row == row.number]) or kept.get(row.number, "")
    dot = "• " if row.number in QUICK else ""
    tests = "<br>".join(_link(test) for test in row.tests) + (f"<br>Not shown: {row.gap}" if row.gap else "")
    return f"| {dot}{row.number} | {row.fault} | {row.injected} | {row.holds} | {tests} | {told} |"


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[{name.rpartition('::')[2].removeprefix('test_')}](../{file})"


def exists(test: str, root: Path = ROOT) -> bool:
    """Whether a file has a test of this name; of a state machine its test case."""
    file, _, name = test.partition("::")
    path = root / file
    return path.exists() and name in set(_names(ast.parse(path.read_text(encoding="utf-8")).body, ()))


def _names(body: list[ast.stmt], within: tuple[str, ...]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _names(node.body, (*within, node.name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield "::".join((*within, node.name))
        elif isinstance(node, ast.Assign) and ast.unparse(node.value).endswith(".TestCase"):
            yield f"{ast.unparse(node.targets[0])}::runTest"
