"""One row of the page for each environment variable that a process reads."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from cachefleet_controlplane.wiring.settings import Settings as ControlPlaneSettings
from cachefleet_operator.settings import Settings as OperatorSettings
from cachefleet_worker.agent.settings import AgentBounds, AgentSettings
from cachefleet_worker.plugin.settings import READERS, PluginSettings

PREFIX: Final = "CACHEFLEET_"
WHEN: Final = re.compile(r"(?<=[.]) (?=(?:Set|Raise|Lower|Change) )")
"""Where a docstring begins to say when to change a setting."""
UNITS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
PLUGIN_ALLOWED: Final[Mapping[str, str]] = {
    "_path": "a path",
    "_features": "names of features",
    "_positive": "above 0",
    "_positive_int": "from 1",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One variable."""

    variable: str
    default: str
    allowed: str
    meaning: str
    when: str


def control_plane_rows() -> list[Row]:
    return _rows(ControlPlaneSettings, ControlPlaneSettings.model_fields)


def operator_rows() -> list[Row]:
    return _rows(OperatorSettings, OperatorSettings.model_fields)


def agent_rows() -> list[Row]:
    fields = AgentSettings.model_fields
    return _rows(AgentSettings, {name: fields[name] for name in fields if name not in AgentBounds.model_fields})


def plugin_rows() -> list[Row]:
    said, defaults = docstrings(PluginSettings, READERS), PluginSettings()
    return [
        Row(_variable(name), shown(name, getattr(defaults, name)), PLUGIN_ALLOWED[reader.__name__], *said[name])
        for name, reader in READERS.items()
    ]


PROCESSES: Final[Mapping[str, Callable[[], list[Row]]]] = {
    "Control plane": control_plane_rows,
    "Operator": operator_rows,
    "Agent": agent_rows,
    "Plugin": plugin_rows,
}


def docstrings(kind: type, names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """What each of these fields is, and when to change it. ValueError where one does not say both."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    after = {_target(node): following for node, following in pairwise(body.body)}
    return {name: _split(name, after.get(name)) for name in names}


def shown(name: str, value: object) -> str:
    """A default, as one would write it."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return _number(name, value)
    return f"`{value}`" if isinstance(value, str | Path) and str(value) else "empty"


def allowed(name: str, field: FieldInfo) -> str:
    """What a setting may be."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not NoneType] or [field.annotation]
    if all(isinstance(kind, str) for kind in kinds):
        return ", ".join(f"`{kind}`" for kind in kinds if kind)
    if kinds[0] is bool:
        return "`true`, `false`"
    if kinds[0] in (int, float):
        return _range(name, field)
    return "a path" if kinds[0] is Path else "text"


def _rows(kind: type[BaseSettings], fields: Mapping[str, FieldInfo]) -> list[Row]:
    said = docstrings(kind, fields)
    return [
        Row(
            str(field.validation_alias or _variable(name)),
            "required" if field.is_required() else shown(name, field.default),
            allowed(name, field),
            *said[name],
        )
        for name, field in fields.items()
    ]


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def _target(node: ast.stmt) -> str:
    return node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else ""


def _split(name: str, node: ast.stmt | None) -> tuple[str, str]:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
        raise ValueError(f"{name} has no docstring")  # noqa: TRY004 - what is wrong is the source
    meaning, *when = WHEN.split(" ".join(node.value.value.split()), maxsplit=1)
    if not when:
        raise ValueError(f"{name}: the docstring does not say when to set, raise, lower or change it")
    return meaning, when[0]


def _range(name: str, field: FieldInfo) -> str:
    def bound(kind: str) -> Any:
        return next((getattr(each, kind) for each in field.metadata if hasattr(each, kind)), None)

    low, above, high = bound("ge"), bound("gt"), bound("le")
    start = f"above {above}" if above is not None else f"from {_number(name, low)}"
    return start if high is None else f"{start} to {_number(name, high)}"


def _number(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        for size, unit in UNITS:
            if value >= size and value % size == 0:
                return f"{value // size:g} {unit}"
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 and "port" not in name else f"{value:g}"
