"""Refuses JSON schemas of answers and of strict tools whose references go round without end.

vLLM takes such a schema, allows no token where it applies, and fails the request with a 500. References that come back
to themselves through a member or an item, such as those of trees, are left to it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import READ_ERRORS, Fields

_FORMAT: Final = ("response_format", "json_schema", "schema")
_VLLM_FIELD: Final = ("structured_outputs", "json")
_ANSWERS: Final[Mapping[Endpoint, tuple[tuple[str, ...], ...]]] = {
    Endpoint.CHAT: (_FORMAT, _VLLM_FIELD),
    Endpoint.COMPLETIONS: (_FORMAT, _VLLM_FIELD),
    Endpoint.RESPONSES: (("text", "format", "schema"), _VLLM_FIELD),
    Endpoint.MESSAGES: (("output_config", "format", "schema"),),
}
"""Where a request has a schema for its answer."""
_TOOLS: Final[Mapping[Endpoint, tuple[str, ...]]] = {
    Endpoint.CHAT: ("function", "parameters"),
    Endpoint.RESPONSES: ("parameters",),
    Endpoint.MESSAGES: ("input_schema",),
}
"""Where a tool has its parameters; vLLM holds a model to them where it is ``strict``."""
_MARK: Final = b"$ref"
_CHOICES: Final = ("anyOf", "oneOf")
_MEMBERS: Final = ("properties", "patternProperties")

Schema = dict[str, Any]


def check_output_schemas(fields: Fields, endpoint: Endpoint) -> None:
    """ApiError 400 where a schema for the answer, or of a strict tool, refers to itself without end."""
    for where, schema in _schemas(fields, endpoint):
        if (reference := endless_reference(schema)) is not None:
            message = f"`{where}`: the reference {reference!r} leads back to itself, so that no value can match it."
            raise ApiError(400, message, param=where)


def _schemas(fields: Fields, endpoint: Endpoint) -> Iterator[tuple[str, Any]]:
    """The schemas of a request that have references, and where they are."""
    for place in _ANSWERS.get(endpoint, ()):
        schema = _at(_with_references(fields, place[0]), place[1:])
        yield ".".join(place), _decoded(schema) if isinstance(schema, str) else schema
    place = _TOOLS.get(endpoint, ())
    tools = _with_references(fields, "tools") if place else None
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        if _at(tool, (*place[:-1], "strict")) is True:
            yield ".".join((f"tools[{number}]", *place)), _at(tool, place)


def _with_references(fields: Fields, name: str) -> Any:
    """A member, where there is a reference in it."""
    raw = fields.get(name)
    return None if raw is None or _MARK not in bytes(raw) else _decoded(bytes(raw))


def _decoded(data: str | bytes) -> Any:
    """None where it is no JSON: vLLM says so itself."""
    try:
        return msgspec.json.decode(data)
    except READ_ERRORS:
        return None


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def endless_reference(root: Any) -> str | None:
    """A reference that leads back to itself where a value has to match it: the whole, or a member of an object.

    None where there is none. A reference to another document is taken to end.
    """
    if not isinstance(root, dict):
        return None
    schemas = list(_reached(root))
    ending = _ending(root, schemas)
    values = (root, *(value for schema in schemas for value in _members(schema)))
    endless = next((value for value in values if id(value) not in ending), None)
    return None if endless is None else _reference(root, endless, ending)


def _reached(root: Schema) -> Iterator[Schema]:
    """The root and all schemas that it leads to, each once."""
    known, waiting = {id(root)}, [root]
    while waiting:
        schema = waiting.pop()
        yield schema
        parts = (part for parts in _groups(root, schema).values() for part in parts)
        for part in (*parts, *_members(schema), *_items(schema)):
            if id(part) not in known:
                known.add(id(part))
                waiting.append(part)


def _ending(root: Schema, schemas: list[Schema]) -> set[int]:
    """Ids of the schemas that come to an end: one part of each of their groups does."""
    ending: set[int] = set()
    open_groups = {id(schema): _groups(root, schema) for schema in schemas}
    users: dict[int, list[tuple[int, str]]] = {}
    for user, groups in open_groups.items():
        for name, parts in groups.items():
            for part in parts:
                users.setdefault(id(part), []).append((user, name))
    found = [schema for schema, groups in open_groups.items() if not groups]
    while found:
        ending.add(schema := found.pop())
        for user, name in users.get(schema, ()):
            if open_groups[user].pop(name, None) and not open_groups[user]:
                found.append(user)
    return ending


def _reference(root: Schema, schema: Schema, ending: set[int]) -> str:
    """The first reference on the way of a schema that does not end."""
    while not isinstance(schema.get("$ref"), str):
        parts = (part for parts in _groups(root, schema).values() for part in parts)
        schema = next(part for part in parts if id(part) not in ending)
    return str(schema["$ref"])


def _groups(root: Schema, schema: Schema) -> dict[str, list[Schema]]:
    """What a value has to match besides, at the same place: of each group one schema."""
    choices = {name: schema.get(name) for name in _CHOICES}
    groups = {name: _listed(parts) for name, parts in choices.items() if isinstance(parts, list) and True not in parts}
    groups |= {f"allOf/{number}": [part] for number, part in enumerate(_listed(schema.get("allOf")))}
    if (target := _target(root, schema.get("$ref"))) is not None:
        groups["$ref"] = [target]
    return {name: parts for name, parts in groups.items() if parts}


def _target(root: Schema, reference: Any) -> Schema | None:
    """What a reference to the same document leads to; None for any other."""
    if not isinstance(reference, str) or not (reference + "/").startswith("#/"):
        return None
    value: Any = root
    for part in reference.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            value = value[int(name)] if name.isdecimal() and int(name) < len(value) else None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else None


def _members(schema: Schema) -> Iterator[Schema]:
    """Schemas of an object's members."""
    for named in (schema.get(name) for name in _MEMBERS):
        yield from _listed(list(named.values())) if isinstance(named, dict) else ()
    yield from _listed([schema.get("additionalProperties")])


def _items(schema: Schema) -> Iterator[Schema]:
    """Schemas of a list's items; a list may have none."""
    items = schema.get("items")
    yield from _listed(items if isinstance(items, list) else [items])
    yield from _listed(schema.get("prefixItems"))


def _listed(values: Any) -> list[Schema]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
