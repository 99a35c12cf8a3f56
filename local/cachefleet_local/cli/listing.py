"""Formats the admin API's items as a table, JSON or YAML."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import yaml

Item = Mapping[str, Any]


class Output(StrEnum):
    """Output format of a command."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table; ``right`` aligns it right, for numbers."""

    title: str
    value: Callable[[Item], object]
    right: bool = False


def _load(name: str) -> Callable[[Item], object]:
    return lambda item: (item["load"] or {}).get(name)


def _free(item: Item) -> object:
    load = item["load"]
    return load and f"{load['blocksFree']}/{load['blocksTotal']}"


def _state(item: Item) -> object:
    if item["excluded"]:
        return "excluded"
    return ("ready" if item["ready"] else item["phase"]) or "unknown"


def _ratio(item: Item) -> object:
    value = item["hitRatio"]["value"]
    return None if value is None else f"{value:.2f}"


def _milliseconds(item: Item) -> object:
    value = item["ttftSeconds"]
    return None if value is None else f"{1000 * value:.0f} ms"


def _age(item: Item) -> object:
    value = item["reportAgeSeconds"]
    return None if value is None else f"{value:.1f} s"


def _second(time: str | None) -> object:
    return time and time[:19].replace("T", " ")


POOLS: Final = (
    Column("POOL", lambda item: item["key"]),
    Column("MODEL", lambda item: item["model"]),
    Column("READY", lambda item: f"{item['workers']['ready']}/{item['workers']['total']}", right=True),
    Column("FRESH", lambda item: item["workers"]["fresh"], right=True),
    Column("EXCLUDED", lambda item: item["workers"]["excluded"], right=True),
    Column("HIT RATIO", _ratio, right=True),
    Column("CONTRACT", lambda item: item["contract"] and item["contract"]["fingerprint"][:19]),
)
WORKERS: Final = (
    Column("WORKER", lambda item: item["name"]),
    Column("POOL", lambda item: item["pool"]),
    Column("STATE", _state),
    Column("STREAM", lambda item: item["stream"]),
    Column("RUNNING", _load("running"), right=True),
    Column("WAITING", _load("waiting"), right=True),
    Column("FREE BLOCKS", _free, right=True),
    Column("HELD BLOCKS", lambda item: item["heldBlocks"], right=True),
    Column("REPORT", _age, right=True),
)
DECISIONS: Final = (
    Column("AT", lambda item: str(item["at"])[11:23]),
    Column("DECISION", lambda item: item["id"]),
    Column("MODEL", lambda item: item["model"]),
    Column("WORKER", lambda item: item["worker"]),
    Column("POLICY", lambda item: item["policy"]),
    Column("KNOWLEDGE", lambda item: item["knowledge"]),
    Column("PROMPT", lambda item: item["promptTokens"], right=True),
    Column("PREDICTED", lambda item: item["predictedTokens"], right=True),
    Column("CACHED", lambda item: item["cachedTokens"], right=True),
    Column("TTFT", _milliseconds, right=True),
    Column("STATUS", lambda item: item["status"], right=True),
    Column("REASON", lambda item: item["reason"]),
)


TENANTS: Final = (
    Column("TENANT", lambda item: item["name"]),
    Column("PRIORITY", lambda item: item["priority"], right=True),
    Column("AT ONCE", lambda item: item["requestsAtOnce"], right=True),
    Column("TOKENS/MIN", lambda item: item["tokensPerMinute"], right=True),
    Column("SALT", lambda item: item["saltVersion"], right=True),
    Column("STATE", lambda item: "disabled" if item["disabled"] else "enabled"),
    Column("CREATED", lambda item: _second(item["created"])),
)
ACCESS: Final = (
    Column("WITHOUT A KEY", lambda item: "served" if item["open"] else "refused"),
    Column("REASON", lambda item: item["reason"]),
)
KEYS: Final = (
    Column("ID", lambda item: item["id"]),
    Column("BEGINS", lambda item: item["hint"]),
    Column("STATE", lambda item: item["state"]),
    Column("CREATED", lambda item: _second(item["created"])),
    Column("EXPIRES", lambda item: _second(item["expires"])),
    Column("REVOKED", lambda item: _second(item["revoked"])),
)
NEW_KEYS: Final = (
    Column("KEY", lambda item: item["key"]),
    Column("ID", lambda item: item["id"]),
    Column("EXPIRES", lambda item: _second(item["expires"])),
)
USAGE: Final = (
    Column("HOUR", lambda item: str(item["hour"])[:13]),
    Column("TENANT", lambda item: item["tenant"]),
    Column("MODEL", lambda item: item["model"]),
    Column("REQUESTS", lambda item: item["requests"], right=True),
    Column("PROMPT", lambda item: item["promptTokens"], right=True),
    Column("CACHED", lambda item: item["cachedTokens"], right=True),
    Column("COMPUTED", lambda item: item["computedTokens"], right=True),
    Column("COMPLETION", lambda item: item["completionTokens"], right=True),
)
IDLE: Final = (
    Column("POOL", lambda item: item["pool"]),
    Column("TENANT", lambda item: item["tenant"] or "(others)"),
    Column("SHARE", lambda item: f"{item['share']:.0%}", right=True),
    Column("BLOCKS", lambda item: item["blocks"], right=True),
    Column("MIB", lambda item: item["mib"], right=True),
)


def listing(items: Sequence[Item], columns: Sequence[Column], output: Output) -> str:
    """The items as text, without a newline at its end."""
    match output:
        case Output.JSON:
            return json.dumps(list(items), indent=2)
        case Output.YAML:
            return str(yaml.safe_dump(list(items), sort_keys=False)).rstrip("\n")
        case Output.TABLE:
            return _table(items, columns)


def single(item: Item, columns: Sequence[Column], output: Output) -> str:
    """One item as text: a table of one row, else the item alone."""
    match output:
        case Output.JSON:
            return json.dumps(dict(item), indent=2)
        case Output.YAML:
            return str(yaml.safe_dump(dict(item), sort_keys=False)).rstrip("\n")
        case Output.TABLE:
            return _table([item], columns)


def _table(items: Sequence[Item], columns: Sequence[Column]) -> str:
    """Columns two spaces apart, as wide as their longest cell."""
    rows = [[column.title for column in columns], *([_cell(c.value(item)) for c in columns] for item in items)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    return "\n".join("  ".join(_aligned(row, columns, widths)).rstrip() for row in rows)


def _aligned(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if column.right else cell.ljust(width)
        for cell, column, width in zip(row, columns, widths, strict=True)
    ]


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)
