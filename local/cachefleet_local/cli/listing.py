"""Formats items as a table, JSON, YAML or names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

Item = Mapping[str, Any]


class Output(StrEnum):
    """Output format of a command."""

    TABLE = "table"
    WIDE = "wide"
    """A table with more columns."""
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    """Names alone, one a line."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table; ``right`` aligns it right, for numbers."""

    title: str
    value: Callable[[Any], object]
    right: bool = False
    wide: bool = False
    """In wide tables alone, but for ``usual``."""
    usual: tuple[object, ...] = ()
    """Of a wide column: values that need no telling; an item with another one shows it in every table."""
    moving: bool = False
    """It changes by itself, as an age does: no news for who watches."""
    name: bool = False
    """It has the item's name, or a part of it; where none has, the first column is it."""
    decode: Callable[[Item], Any] | None = None
    """What makes of the item what ``value`` takes; None where that is the item."""


def decoded_columns(decode: Callable[[Item], Any], *columns: Column) -> tuple[Column, ...]:
    """Columns of what items are decoded to."""
    return tuple(replace(column, decode=decode) for column in columns)


def listing(items: Sequence[Any], columns: Sequence[Column], output: Output) -> str:
    """The items as text, without a newline at its end."""
    match output:
        case Output.JSON:
            return json.dumps(list(items), indent=2)
        case Output.YAML:
            return _yaml(list(items))
        case Output.NAME:
            return "\n".join(name_of(item, columns) for item in items)
        case Output.TABLE | Output.WIDE:
            return "\n".join(Rows(_telling(items, columns, output), Output.WIDE).lines(items))


def _telling(items: Sequence[Any], columns: Sequence[Column], output: Output) -> list[Column]:
    """The columns of a table with these items."""
    return [
        column
        for column in columns
        if output is Output.WIDE or not column.wide or any(_tells(item, column) for item in items)
    ]


def _tells(item: Any, column: Column) -> bool:
    return bool(column.usual) and column.value(column.decode(item) if column.decode else item) not in column.usual


def single(item: Item, columns: Sequence[Column], output: Output) -> str:
    """One item as text: a table of one row, else the item alone."""
    match output:
        case Output.JSON:
            return json.dumps(dict(item), indent=2)
        case Output.YAML:
            return _yaml(dict(item))
        case _:
            return listing([item], columns, output)


def name_of(item: Item, columns: Sequence[Column]) -> str:
    """The item's name."""
    named = [column for column in columns if column.name] or columns[:1]
    return "/".join(_cells(item, named))


def news_of(item: Item, columns: Sequence[Column]) -> tuple[str, ...]:
    """What is compared to find out whether the item has changed."""
    return tuple(_cells(item, [column for column in columns if not column.moving]))


class Rows:
    """A table that may go on: columns two spaces apart, as wide as their longest cell so far."""

    def __init__(self, columns: Sequence[Column], output: Output) -> None:
        self._columns = [column for column in columns if output is Output.WIDE or not column.wide]
        self._widths = [len(column.title) for column in self._columns]
        self._begun = False

    def lines(self, items: Sequence[Any]) -> list[str]:
        """The next rows, after the titles where these are the first."""
        rows = [_cells(item, self._columns) for item in items]
        for i, width in enumerate(self._widths):
            self._widths[i] = max([width, *(len(row[i]) for row in rows)])
        titles = [] if self._begun else [[column.title for column in self._columns]]
        self._begun = True
        return ["  ".join(self._aligned(row)).rstrip() for row in [*titles, *rows]]

    def _aligned(self, row: Sequence[str]) -> list[str]:
        return [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, column, width in zip(row, self._columns, self._widths, strict=True)
        ]


def _cells(item: Any, columns: Sequence[Column]) -> list[str]:
    """The item's cells; it is decoded once for all columns."""
    values = {decode: decode(item) if decode else item for decode in {column.decode for column in columns}}
    return [_cell(column.value(values[column.decode])) for column in columns]


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def _yaml(value: object) -> str:
    import yaml  # noqa: PLC0415 - most outputs do without

    return str(yaml.safe_dump(value, sort_keys=False)).rstrip("\n")
