"""Problems of a pool file, one line each: path, value given, and what is allowed there."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cachefleet_core.pool.section import PATTERN_WORDS, RULE, literal

MAX_SHOWN: Final = 60
"""Characters of a given value that a problem shows."""
HIDDEN: Final = frozenset({"content", "value"})
"""Fields that may hold a prompt or a credential: only their kind is shown."""

MISSING: Final = "missing"
_IDENTITY: Final = frozenset({"apiVersion", "kind"})
"""Where these are wrong, a document's other problems are left out."""

Path = tuple[str | int, ...]
Schema = dict[str, Any]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: path, value given (shortened), and what is allowed there, in words.

    ``where`` names the document in a file of several.
    """

    path: str
    value: str
    allowed: str
    where: str = ""

    def __str__(self) -> str:
        return _one_line(": ".join(part for part in (self.where, self.path, self.value, self.allowed) if part))


class PoolError(ValueError):
    """An invalid pool; the error's text has one line for each problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def problems_of(model: type[M], document: Any, *, where: str = "") -> tuple[M | None, list[Problem]]:
    """Validate a decoded document: the model and no problems, or None and its problems."""
    try:
        return model.model_validate(document, by_alias=True, by_name=False), []
    except ValidationError as error:
        problems = [_problem(model, document, details, where=where) for details in error.errors(include_url=False)]
        foreign = [problem for problem in problems if problem.path in _IDENTITY and problem.value != MISSING]
        return None, foreign or problems


def preview(value: Any, *, hidden: bool = False) -> str:
    """A given value on one line, shortened; of mappings, lists and hidden values only the kind."""
    match value:
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return f"a list of {len(value)}"
        case str() | bool() | int() | float():
            return _hidden(value) if hidden else _shortened(json.dumps(value, ensure_ascii=False))
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def _hidden(value: str | float) -> str:
    return f"text of {len(value)} characters" if isinstance(value, str) else "a number, true or false"


def _problem(model: type[BaseModel], document: Any, details: ErrorDetails, *, where: str) -> Problem:
    path = details["loc"]
    if path and path[-1] == "[key]":  # how a free mapping marks its keys
        path, details = path[:-1], {**details, "type": "invalid_key"}
    name, field = path_text(path), path[-1] if path else ""
    match details["type"]:
        case "missing":
            return Problem(name, MISSING, f"must be {words(_node(model, path))}", where)
        case "extra_forbidden":
            return Problem(
                name, preview(details["input"], hidden=isinstance(details["input"], str)), _unknown(model, path), where
            )
        case kind if kind == RULE:
            return Problem(name, preview(_lookup(document, path)), details["msg"], where)
        case "invalid_key":
            allowed = "must be text as the name of a field: put it in quotes"
            return Problem(path_text(path[:-1]), preview(details["input"]), allowed, where)
    shown = preview(details["input"], hidden=field in HIDDEN)
    node = _node(model, path)
    return Problem(name, shown, f"must be {words(node)}{_hint(details['input'], node)}", where)


def path_text(path: Path) -> str:
    """A path as Kubernetes writes it: ``spec.engine.env[0].name``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{_shortened(str(step))}" for step in path)
    return text.removeprefix(".")


def words(node: Schema) -> str:
    """What a schema allows, in words, with the default if there is one."""
    default = node.get("default")
    return _allowed(node) + ("" if isinstance(default, dict | list | None) else f" (default {literal(default)})")


def _allowed(node: Schema) -> str:
    if "enum" in node:
        return f"one of {', '.join(node['enum'])}"
    if "const" in node:
        return str(node["const"])
    say = _TYPES.get(node.get("type", ""))
    return say(node) if say else "made of mappings, lists, text, numbers, true and false only"


def _range(node: Schema) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is None:
        return ""
    return f" from {low} to {high}" if high is not None else f" of at least {low}"


def _length(node: Schema) -> str:
    low, high = node.get("minLength", 0), node.get("maxLength")
    size = f" of {low} to {high} characters" if high else ""
    pattern = PATTERN_WORDS.get(node.get("pattern", ""))
    return size + (f": {pattern}" if pattern else "")


def _entries(node: Schema) -> str:
    low, high = node.get("minItems", 0), node.get("maxItems")
    return f" of {low} to {high} entries" if high else ""


def _fields(node: Schema) -> str:
    return f" with the fields {', '.join(node['properties'])}" if node.get("properties") else ""


_TYPES: Final[dict[str, Callable[[Schema], str]]] = {
    "boolean": lambda _: "true or false",
    "integer": lambda node: f"a whole number{_range(node)}",
    "number": lambda node: f"a number{_range(node)}",
    "string": lambda node: f"text{_length(node)}",
    "array": lambda node: f"a list{_entries(node)}",
    "object": lambda node: f"a mapping{_fields(node)}",
}


def _unknown(model: type[BaseModel], path: Path) -> str:
    known = list(_node(model, path[:-1]).get("properties", ()))
    folded = {name.casefold().replace("_", ""): name for name in known}
    wanted = str(path[-1]).casefold().replace("_", "")
    near = difflib.get_close_matches(wanted, folded, n=1)
    if near:
        return f'is not a known field; did you mean "{folded[near[0]]}"?'
    return f"is not a known field; known are {', '.join(known)}"


def _hint(value: Any, node: Schema) -> str:
    kind = node.get("type")
    if kind == "string" and isinstance(value, bool):
        return "; YAML reads on, off, yes and no without quotes as true or false: put the text in quotes"
    if kind == "string" and isinstance(value, int | float):
        return "; put it in quotes to make it text"
    if kind in {"integer", "number", "boolean"} and isinstance(value, str):
        return "; without quotes"
    return ""


def _node(model: type[BaseModel], path: Path) -> Schema:
    root = _schema(model)
    node = _resolved(root, root)
    for step in path:
        node = node.get("items", {}) if isinstance(step, int) else node.get("properties", {}).get(step, {})
        node = _resolved(root, node)
    return node


def _resolved(root: Schema, node: Schema) -> Schema:
    """The schema of a reference or an optional value, with the keywords beside it."""
    aside = {name: value for name, value in node.items() if name not in {"$ref", "anyOf"}}
    if "anyOf" in node:
        return {**_resolved(root, node["anyOf"][0]), **aside}
    if "$ref" in node:
        return {**_resolved(root, root["$defs"][node["$ref"].rsplit("/", 1)[-1]]), **aside}
    return node


@cache
def _schema(model: type[BaseModel]) -> Schema:
    return model.model_json_schema()


def _lookup(document: Any, path: Path) -> Any:
    for step in path:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _one_line(text: str) -> str:
    """The text with characters escaped that break, hide or reorder a line on a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
