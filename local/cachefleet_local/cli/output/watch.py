"""``--watch``: shows an answer again and again: a terminal is drawn anew, elsewhere what is new is added."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import typer

from cachefleet_local.cli.admin_client import RefusedError, UnreachableError
from cachefleet_local.cli.listing import Column, Item, Output, Rows, listing, name_of, news_of

INTERRUPTED = 130
"""Exit status of what Ctrl-C has ended."""

_CLEAR = "\x1b[2J"
_HOME = "\x1b[H"
_END_OF_LINE = "\x1b[K"
_BELOW = "\x1b[J"


@dataclass(frozen=True, slots=True)
class Watched:
    """What is shown, and how often it is looked at, in seconds."""

    columns: Sequence[Column]
    output: Output
    interval: float
    empty: str = ""
    newest_first: bool = False


def watch(answer: Callable[[], Sequence[Item]], watched: Watched) -> NoReturn:
    """Show the items of each answer until Ctrl-C; failures are reported and retried."""
    redrawn = sys.stdout.isatty() and watched.output in {Output.TABLE, Output.WIDE}
    view: _Redrawn | _Appended = _Redrawn(watched) if redrawn else _Appended(watched)
    try:
        view.show(answer())
        while True:
            time.sleep(watched.interval)
            _again(answer, view)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _again(answer: Callable[[], Sequence[Item]], view: _Redrawn | _Appended) -> None:
    try:
        view.show(answer())
    except UnreachableError as error:
        view.failed(error.lines[0])
    except RefusedError:  # a token that has expired is replaced by asking again
        view.show(answer())


class _Appended:
    """Items as they come, and again when they change."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._rows = Rows(watched.columns, watched.output)
        self._shown: dict[str, tuple[str, ...]] | None = None
        self._failing = False

    def show(self, items: Sequence[Item]) -> None:
        columns = self._watched.columns
        now = {name_of(item, columns): news_of(item, columns) for item in items}
        known = self._shown or {}
        new = [item for item in items if known.get(name_of(item, columns)) != now[name_of(item, columns)]]
        if self._shown is None and not items:
            typer.echo(self._watched.empty, err=True)
        for line in self._lines(new[::-1] if self._watched.newest_first else new):
            typer.echo(line)
        if not self._watched.newest_first:
            for name in known.keys() - now.keys():
                typer.echo(f"{name}: gone", err=True)
        self._shown, self._failing = now, False

    def failed(self, line: str) -> None:
        if not self._failing:
            typer.echo(f"{line}; trying again", err=True)
        self._failing = True

    def _lines(self, items: Sequence[Item]) -> list[str]:
        match self._watched.output:
            case Output.JSON:
                return [json.dumps(item) for item in items]
            case Output.YAML:
                return [f"---\n{listing([item], self._watched.columns, Output.YAML)}" for item in items]
            case Output.NAME:
                return [name_of(item, self._watched.columns) for item in items]
            case Output.TABLE | Output.WIDE:
                return self._rows.lines(items) if items else []


class _Redrawn:
    """The whole answer, in the same place."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._items: Sequence[Item] = ()
        typer.echo(_CLEAR, nl=False)

    def show(self, items: Sequence[Item]) -> None:
        self._items = items
        self._draw("")

    def failed(self, line: str) -> None:
        self._draw(f"{line}; trying again")

    def _draw(self, problem: str) -> None:
        size = shutil.get_terminal_size()
        head = f"every {self._watched.interval:g} s, {time.strftime('%H:%M:%S')}; Ctrl-C ends"
        table = (
            listing(self._items, self._watched.columns, self._watched.output) if self._items else self._watched.empty
        )
        lines = [head, *([problem] if problem else []), "", *table.splitlines()][: size.lines - 1]
        drawn = "".join(f"{line[: size.columns]}{_END_OF_LINE}\n" for line in lines)
        typer.echo(f"{_HOME}{drawn}{_BELOW}", nl=False)
