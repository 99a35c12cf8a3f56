"""The text of docs/settings.md."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Final

from cachefleet_core.environment.removed_variables import PREFIX, REMOVED
from tests.settings_page.rows import PROCESSES, Row

WIDTH: Final = 119
INTRODUCTION: Final = """# Settings

Every environment variable that a process reads at its start, with its default, what it may be, and when to change it.
Written by `python -m tests.settings_page` from the code. In a cluster the chart and the operator set what is needed;
others go into `controlPlane.extraEnv` and `operator.extraEnv` of the chart, and into `engine.env` (plugin) or
`podTemplate` (agent) of a pool. Times are seconds. An empty variable is as one that is not set. A value that cannot be
used ends the start with one line for each; the plugin then switches its features off, and vLLM serves.

Times and sizes that nobody needs to change have no variable: they are constants in the code, beside their use.
Variables of traces (`OTEL_*`) are in [traces](tracing.md), those of the command line in [its page](cli.md).
"""
REMOVED_NAMES: Final = """
## No longer read

These had settings in earlier releases, and are fixed now. A process that starts with one of them set says so in its
log and goes on; take it out of the environment.
"""


def page() -> str:
    """The whole page."""
    tables = [_table(process, rows()) for process, rows in PROCESSES.items()]
    removed = [_removed(process, names) for process, names in REMOVED.items()]
    return "\n".join([INTRODUCTION, *tables, REMOVED_NAMES.lstrip("\n"), *removed, ""])


def _table(process: str, rows: list[Row]) -> str:
    head = [
        f"## {process}",
        "",
        "| variable | default | allowed | what it is | when to change it |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *map(_line, rows), ""])


def _removed(process: str, names: Iterable[str]) -> str:
    line = f"- {process}: {', '.join(f'`{PREFIX}{name}`' for name in sorted(names))}"
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _line(row: Row) -> str:
    cells = (f"`{row.variable}`", row.default, row.allowed, row.meaning, row.when)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
