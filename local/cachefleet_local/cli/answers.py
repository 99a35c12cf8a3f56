"""Queries the admin API and prints the answer, once or with ``--watch``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import typer

from cachefleet_local.cli.admin_client import TIMEOUT_SECONDS, AdminClient, RefusedError, UnreachableError
from cachefleet_local.cli.contexts.access import AdminAccess, Where, find_access
from cachefleet_local.cli.listing import Column, Item, Output, listing, single
from cachefleet_local.cli.output.watch import Watched, watch
from cachefleet_local.cli_errors import FailureError

INTERVAL_SECONDS: Final = 2.0

Question = Callable[[AdminClient], Any]


class Asker:
    """Asks one control plane questions; looks for it anew after one that it did not answer."""

    def __init__(self, where: Where, *, seconds: float = TIMEOUT_SECONDS) -> None:
        self._where = where
        self._seconds = seconds
        self._access: AdminAccess | None = None
        self._answered = False

    def __call__(self, question: Question) -> Any:
        """The answer. UnreachableError where it may come later; FailureError."""
        access = self._access = self._access or self._find_access()
        try:
            answer = question(AdminClient(access, seconds=self._seconds))
        except (UnreachableError, RefusedError):
            self._access = None
            raise
        self._answered = True
        return answer

    def _find_access(self) -> AdminAccess:
        try:
            return find_access(self._where)
        except FailureError as error:
            if self._answered:  # a fleet that is started anew has neither address nor token for a moment
                raise UnreachableError(error.lines) from error
            raise


def ask(where: Where, question: Question, *, seconds: float = TIMEOUT_SECONDS) -> Any:
    """The answer to a question."""
    return Asker(where, seconds=seconds)(question)


def agreed(question: str) -> bool:
    """Ask for confirmation on the terminal; the prompt goes to standard error."""
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


@dataclass(frozen=True, slots=True)
class Show:
    """How answers are printed, and who is asked."""

    where: Where
    output: Output = Output.TABLE
    interval: float | None = None
    """How often it is asked again, in seconds; None where it is asked once."""

    def items(
        self, question: Question, columns: Sequence[Column], *, empty: str = "", newest_first: bool = False
    ) -> Mapping[str, Any]:
        """Print the items of an answer, or on standard error that there are none; the answer."""
        if self.interval is not None:
            asker = Asker(self.where)
            watched = Watched(columns, self.output, self.interval, empty=empty, newest_first=newest_first)
            watch(lambda: asker(question)["items"], watched)
        found: Mapping[str, Any] = ask(self.where, question)
        self.rows(found["items"], columns, empty=empty)
        return found

    def rows(self, items: Sequence[Item], columns: Sequence[Column], *, empty: str = "") -> None:
        """Print items, or on standard error that there are none."""
        if items or self.output in {Output.JSON, Output.YAML}:
            typer.echo(listing(items, columns, self.output))
        elif empty:
            typer.echo(empty, err=True)

    def item(self, question: Question, columns: Sequence[Column], *, note: str = "") -> Item:
        """Print an answer of one item, and a note after it on standard error; the item."""
        item: Item = ask(self.where, question)
        typer.echo(single(item, columns, self.output))
        if note:
            typer.echo(note, err=True)
        return item
