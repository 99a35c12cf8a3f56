"""What people may set is read by code: every field of a pool, every setting of a process, every value of the chart.

A field counts as read where a module takes an attribute of that name; so a name that several declare hides one that is
not read. Names that nothing reads, which is how a field comes to do nothing, are found.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pydantic import BaseModel

from cachefleet_controlplane.wiring.settings import Settings as ControlPlaneSettings
from cachefleet_core.environment.removed_variables import REMOVED
from cachefleet_core.pool import policy
from cachefleet_core.pool.spec import PoolSpec
from cachefleet_operator.settings import Settings as OperatorSettings
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.plugin.settings import PluginSettings
from tests.docs.examples import PAGES, ROOT
from tests.settings_page.rows import PROCESSES

PACKAGES: Final = ("core", "runtime", "controlplane", "worker", "operator", "local")
CHART: Final = ROOT / "charts/cachefleet"
OF_HELM: Final = frozenset({"global"})
"""Values that Helm and parent charts have a use for."""


@cache
def _modules() -> Mapping[Path, ast.Module]:
    return {file: ast.parse(file.read_text()) for package in PACKAGES for file in (ROOT / package).rglob("*.py")}


@cache
def _reads() -> Mapping[str, frozenset[Path]]:
    """The modules that take an attribute, by its name."""
    found: dict[str, set[Path]] = {}
    for file, module in _modules().items():
        for node in ast.walk(module):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.setdefault(node.attr, set()).add(file)
    return {name: frozenset(files) for name, files in found.items()}


def _models(of: Any, seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    if isinstance(of, type) and issubclass(of, BaseModel):
        if of not in seen:
            seen.add(of)
            for field in of.model_fields.values():
                _models(field.annotation, seen)
    else:
        for inner in typing.get_args(of):
            _models(inner, seen)
    return seen


def declared() -> Iterator[tuple[str, str]]:
    """Class and name of all fields of a pool's spec, and of all settings."""
    of_pools = sorted(_models(PoolSpec, set()), key=lambda one: one.__name__)
    kinds: list[type[BaseModel]] = [*of_pools, ControlPlaneSettings, OperatorSettings, AgentSettings]
    for kind in kinds:
        yield from ((f"{kind.__module__}.{kind.__name__}", name) for name in kind.model_fields)
    yield from ((f"{PluginSettings.__module__}.PluginSettings", one.name) for one in dataclasses.fields(PluginSettings))


def unread(names: Iterator[tuple[str, str]]) -> list[str]:
    return [f"{kind}.{name}" for kind, name in names if not _reads().get(name)]


def test_every_field_of_a_pool_and_every_setting_is_read() -> None:
    assert unread(declared()) == []


def test_a_field_that_nothing_reads_is_found() -> None:
    assert unread(iter([(policy.HitSpec.__name__, "omit_what_nobody_reads")])) == ["HitSpec.omit_what_nobody_reads"]
    assert ("cachefleet_core.pool.policy.HitSpec", "omit_zero_cached_tokens") in set(declared())


@cache
def _templates() -> str:
    files = [*(CHART / "templates").iterdir()]
    return re.sub(r"\{\{-?\s*/\*.*?\*/\s*-?\}\}", "", "\n".join(file.read_text() for file in files), flags=re.DOTALL)


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, (*path, name))
    else:
        yield path


def _is_rendered(path: tuple[str, ...], templates: str) -> bool:
    """Whether templates name a value by its last name, or give something around it as a whole."""
    if re.search(rf"\.{path[-1]}\b", templates):
        return True
    return any(re.search(rf"\.{name}(?![\w.])", templates) for name in path[1:-1])


def _values() -> list[tuple[str, ...]]:
    return [path for path in _leaves(yaml.safe_load((CHART / "values.yaml").read_text())) if path[0] not in OF_HELM]


@pytest.mark.parametrize("path", [pytest.param(path, id=".".join(path)) for path in _values()])
def test_every_value_of_the_chart_is_rendered(path: tuple[str, ...]) -> None:
    assert _is_rendered(path, _templates())


def test_a_value_that_nothing_renders_is_found() -> None:
    assert not _is_rendered(("controlPlane", "ofNoUse"), _templates())
    assert not _is_rendered(("ofNoUse",), _templates())


VARIABLE: Final = re.compile(r"\bCACHEFLEET_[A-Z0-9_]+\b")
PREFIX: Final = "CACHEFLEET_"


@cache
def _variables() -> frozenset[str]:
    """Environment variables that code, images, the chart or the Makefile know."""
    places = [*(ROOT / "images").rglob("*"), *CHART.rglob("*"), ROOT / "Makefile", *(ROOT / "native").rglob("*.toml")]
    code = [file for part in (*PACKAGES, "bench", "e2e", "tests") for file in (ROOT / part).rglob("*.py")]
    here = Path(__file__)
    named = {
        name
        for file in (*places, *code)
        if file.is_file() and file != here
        for name in VARIABLE.findall(file.read_text(errors="ignore"))
    }
    made = {row.variable for rows in PROCESSES.values() for row in rows()}
    return frozenset(named | made)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_variables_that_a_page_names_are_known(page: Path) -> None:
    named = {name for name in VARIABLE.findall(page.read_text()) if not name.endswith("_")}
    # One page lists those that are gone.
    removed = {f"{PREFIX}{name}" for names in REMOVED.values() for name in names}
    assert named - _variables() - (removed if page.name == "settings.md" else set()) == set()
