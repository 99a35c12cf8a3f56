"""Values of options without pydantic are those that typer makes."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import typer

from cachefleet_local.cli.quick_values import quick_parameters, quickened


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def command(
    *,
    text: str | None = None,
    count: Annotated[int, typer.Option(min=1, max=9)] = 2,
    share: Annotated[float, typer.Option(max=1)] = 0.5,
    file: Path = Path(),
    colour: Colour = Colour.RED,
    on: bool | None = None,
    at: datetime | None = None,
) -> None:
    typer.echo(repr([text, count, share, file, colour, on, at]))


def told(words: tuple[str, ...], capsys: pytest.CaptureFixture[str], *, quick: bool) -> tuple[object, str, str]:
    """Exit status, output, and what is wrong with the words."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)
    made: Any = typer.main.get_command(app)
    with pytest.raises(SystemExit) as ended:
        (quickened(made) if quick else made)(args=list(words), prog_name="tried")
    return ended.value.code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ((), 0),
        (("--text", "5", "--count", "9", "--share", "-1e3", "--file", "a/b", "--colour", "blue", "--on"), 0),
        (("--at", "2027-01-31T12:00:00"), 0),
        (("--count", "0"), 2),
        (("--count", "10"), 2),
        (("--count", "1.5"), 2),
        (("--share", "1.01"), 2),
        (("--share", "much"), 2),
        (("--colour", "green"), 2),
        (("--at", "soon"), 2),
    ],
)
def test_values_are_typers(words: tuple[str, ...], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    quick = told(words, capsys, quick=True)

    assert quick == told(words, capsys, quick=False)
    assert quick[0] == status


def test_a_typer_without_such_conversions_is_left_alone() -> None:
    parameter = SimpleNamespace(nargs=1)

    assert quick_parameters([parameter]) == [parameter]
