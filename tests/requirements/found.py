"""Which tests show which requirements: by their names (``test_b16_...``) or ``@pytest.mark.requirement("B16")``."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("tests", "e2e")
_NUMBERED: Final = re.compile(r"test_((?:[abc]\d{1,2}_)+)")


@dataclass(frozen=True, slots=True, order=True)
class Shown:
    """A test: the file it is in, from the repository's root, and its name with its class."""

    file: str
    name: str


def shown(root: Path = ROOT) -> Mapping[str, list[Shown]]:
    """The tests of each requirement, in order."""
    found: dict[str, set[Shown]] = defaultdict(set)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("test_*.py")):
            for number, name in _numbers(ast.parse(path.read_text(encoding="utf-8")).body, ()):
                found[number].add(Shown(path.relative_to(root).as_posix(), name))
    return {number: sorted(tests) for number, tests in found.items()}


def _numbers(body: list[ast.stmt], within: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _numbers(node.body, (*within, node.name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            name = "::".join((*within, node.name))
            yield from ((number, name) for number in {*_named(node.name), *_marked(node)})


def _named(name: str) -> list[str]:
    numbered = _NUMBERED.match(name)
    return numbered[1].upper().strip("_").split("_") if numbered else []


def _marked(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.requirement":
            yield from (ast.literal_eval(argument) for argument in decorator.args)
