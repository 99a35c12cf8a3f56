"""Pydantic models as a structural schema, the dialect of JSON Schema that Kubernetes takes.

What differs: no references and no titles, optional fields instead of unions with null, no closed objects (the
server drops unknown fields by itself), and the rules of each section as CEL. Descriptions end with range and default,
which ``kubectl explain`` does not show.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from cachefleet_core.pool.section import Rule, Section, alias, literal

Schema = dict[str, Any]

_KEPT: Final = (
    "description",
    "type",
    "format",
    "enum",
    "default",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "items",
    "required",
    "properties",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
)
"""Keywords of JSON Schema that a structural schema has, in the order of the output."""
_FORMATS: Final = {"integer": "int64", "number": "double"}


def structural_schema(model: type[BaseModel]) -> Schema:
    """The structural schema of a model made of sections."""
    root = model.model_json_schema(schema_generator=_Generator)
    return _structural(root, root.get("$defs", {}))


class _Generator(GenerateJsonSchema):
    """Adds each section's rules as x-kubernetes-validations."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        validations = _validations(schema["cls"])
        return made | ({"x-kubernetes-validations": validations} if validations else {})


def _validations(section: type[Section]) -> list[Schema]:
    fixed = [
        {
            "rule": f"self.{field} == oldSelf.{field}",
            "message": "must not change in the life of a pool",
            "fieldPath": f".{field}",
        }
        for field in map(alias, section.immutable)
    ]
    return fixed + [_validation(rule) for rule in section.rules if rule.cel]


def _validation(rule: Rule) -> Schema:
    made = {"rule": rule.cel, "message": rule.message, "fieldPath": f".{rule.field}"}
    return made | ({"messageExpression": rule.cel_message} if rule.cel_message else {})


def _structural(node: Schema, definitions: dict[str, Schema]) -> Schema:
    node = _resolved(node, definitions)
    node = {"format": _FORMATS.get(node.get("type", "")), **node, "description": _described(node)}
    made = {name: node[name] for name in _KEPT if node.get(name) not in (None, "")} | _default(node)
    if "properties" in made:
        made["properties"] = {name: _structural(child, definitions) for name, child in made["properties"].items()}
    if "items" in made:
        made["items"] = _structural(made["items"], definitions)
    return made


def _resolved(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """The schema of a reference or an optional value, overlaid with the keywords beside it."""
    aside = {name: value for name, value in node.items() if name not in {"$ref", "anyOf"} and value is not None}
    if "anyOf" in node:
        return _resolved(node["anyOf"][0], definitions) | aside
    if "$ref" in node:
        return _resolved(definitions[node["$ref"].rsplit("/", 1)[-1]], definitions) | aside
    return node


def _described(node: Schema) -> str:
    """A field's description, range, and default: in the words of its docstring, else of the schema."""
    said, _, default = node.get("description", "").partition(" Default: ")
    if not default and not isinstance(node.get("default"), dict | list | None):
        default = f"{literal(node['default'])}."
    return " ".join(part for part in (said, _range(node), f"Default: {default}" if default else "") if part)


def _range(node: Schema) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is None:
        return ""
    return f"From {low} to {high}." if high is not None else f"At least {low}."


def _default(node: Schema) -> Schema:
    """The default as the server takes it: without nulls; of a section in full, because its rules must hold for it."""
    default = node.get("default")
    if isinstance(default, dict):
        default = {name: value for name, value in default.items() if value is not None}
    return {} if default is None else {"default": default}
