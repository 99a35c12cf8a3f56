"""What a fake engine says where the body leaves it no choice: a forced tool call, JSON of a schema.

As under a grammar, the text is sound; as of a fake, it means nothing: the smallest value that a schema allows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Schema = Mapping[str, Any]

_PLAIN: Final[Schema] = {"array": [], "integer": 0, "number": 0, "boolean": False, "null": None}


@dataclass(frozen=True, slots=True)
class Script:
    """The text of an answer; ``tool`` is the one it calls with that text as arguments, "" for none."""

    text: str
    tool: str = ""
    required: bool = False
    """Some tool had to be called; it was not named."""


def script_of(body: Mapping[str, Any]) -> Script | None:
    """Of a chat's body; None where the engine may say what it likes."""
    tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
    match body.get("tool_choice"):
        case "required" if tools:
            name, function = next(iter(tools.items()))
            return Script(smallest_text(function.get("parameters")), name, required=True)
        case {"type": "function", "function": {"name": name}} if name in tools:
            return Script(smallest_text(tools[name].get("parameters")), name)
    match body.get("response_format"):
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return Script(smallest_text(schema))
        case {"type": "json_object"}:
            return Script("{}")
    wanted = (body.get("structured_outputs") or {}).get("json")
    return Script(smallest_text(wanted)) if wanted else None


def smallest_text(schema: Schema | None) -> str:
    """The smallest JSON text of a schema."""
    return json.dumps(smallest(schema or {"type": "object"}, schema or {}))


def smallest(schema: Schema, root: Schema) -> Any:
    """The smallest value of a schema whose definitions are in ``root``."""
    if reference := schema.get("$ref"):
        return smallest(root["$defs"][str(reference).rpartition("/")[2]], root)
    if several := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return smallest(several[0], root)
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        properties = schema.get("properties") or {}
        return {name: smallest(properties[name], root) for name in schema.get("required") or properties}
    if kind == "array" and schema.get("items"):
        return [smallest(schema["items"], root)] * schema.get("minItems", 0)
    return _PLAIN.get(str(kind), "x")
