"""Reads YAML into plain values as Kubernetes' clients do, within bounds.

Times stay text and ``1:30`` is no number, as in Kubernetes' own reader; a field given twice is an error; aliases count
as what they stand for, so that a small file cannot expand without bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from cachefleet_core.pool.validation_problems import PoolError, Problem, preview

MAX_CHARACTERS: Final = 4 * 1024 * 1024
MAX_NODES: Final = 100_000
"""Values in one document, each alias counted as what it stands for."""
_OPEN: Final = -1

_INT: Final = re.compile(r"^[-+]?(0|0o?[0-7]+|[1-9][0-9]{0,18}|0x[0-9a-fA-F]{1,16}|0b[01]{1,64})$")
_FLOAT: Final = re.compile(
    r"^[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]{1,4})?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
)


class _Loader(yaml.SafeLoader):
    """SafeLoader without times and sexagesimal numbers, and exact about keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # PyYAML's own attribute


for _first, _resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items():
    _kept = [pair for pair in _resolvers if pair[0].rsplit(":", 1)[-1] not in {"int", "float", "timestamp"}]
    _Loader.yaml_implicit_resolvers[_first] = _kept
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


class _UnsoundError(ValueError):
    """YAML that is well formed but not accepted."""


def documents(text: str) -> list[tuple[int, Any]]:
    """The documents of a YAML file, numbered from 1, empty ones left out. PoolError where there is none."""
    if len(text) > MAX_CHARACTERS:
        raise _refused(f"must have at most {MAX_CHARACTERS} characters, not {len(text)}")
    try:
        given = [(number, value) for number, value in enumerate(_values(text), start=1) if value is not None]
    except _UnsoundError as error:
        raise _refused(str(error)) from error
    except (yaml.YAMLError, ValueError) as error:
        raise _refused(f"is not YAML: {_parser_message(error)}") from error
    except RecursionError as error:
        raise _refused("is nested too deeply") from error
    if not given:
        raise _refused("is empty; it must hold at least one PrefixCachePool")
    return given


def _values(text: str) -> Iterator[Any]:
    loader = _Loader(text)
    try:
        while loader.check_node() and (node := loader.get_node()):
            _weigh(node, {})
            yield loader.construct_document(node)
    finally:
        loader.dispose()


def _weigh(node: yaml.Node, known: dict[int, int]) -> int:
    """Number of values of a node with its aliases expanded."""
    weight = known.get(id(node))
    if weight == _OPEN:
        raise _UnsoundError(f"contains itself through an alias (line {_line(node)})")
    if weight is None:
        known[id(node)] = _OPEN
        weight = known[id(node)] = 1 + sum(_weigh(child, known) for child in _children(node))
    if weight > MAX_NODES:
        raise _UnsoundError(f"must stand for at most {MAX_NODES} values, aliases written out")
    return weight


def _children(node: yaml.Node) -> list[yaml.Node]:
    match node:
        case yaml.MappingNode():
            _check_unique(node)
            return [child for pair in node.value for child in pair]
        case yaml.SequenceNode():
            return list(node.value)
    return []


def _check_unique(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in seen:
            raise _UnsoundError(f"gives {preview(key.value)} twice in one mapping (line {_line(key)})")
        seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _parser_message(error: Exception) -> str:
    """The parser's message with line and column, without the text around it, which may hold anything."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"{error.problem} (line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1})"
    return str(error).split("\n", maxsplit=1)[0]


def _refused(what: str) -> PoolError:
    return PoolError([Problem("", "file", what)])
