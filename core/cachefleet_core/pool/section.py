"""Base of a pool's schema: sections, rules across their fields, bounded types.

A rule is written twice in one place, as CEL for the API server and as Python for everyone else, so that a pool
refused by one is refused by the other with the same words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict
from pydantic_core import InitErrorDetails, PydanticCustomError

RULE: Final = "rule"
"""Type of the error that a broken rule raises; its path ends with the rule's field."""

DNS_LABEL: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
POOL_NAME: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
MODEL_NAME: Final = "^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$"
MODEL_ALIAS: Final = "^[A-Za-z0-9*]([A-Za-z0-9._:/*-]*[A-Za-z0-9*])?$"
ARGUMENT: Final = r"^[^-\s]\S*$"
OPTIONAL_ARGUMENT: Final = r"^([^-\s]\S*)?$"
VERSION: Final = r"^(v?[0-9]{1,4}\.[0-9]{1,4}[-+._A-Za-z0-9]*)?$"
_FOLDER: Final = r"\.?[-_A-Za-z0-9][-._A-Za-z0-9]*"
SUB_PATH: Final = f"^({_FOLDER}(/{_FOLDER})*)?$"
RESOURCE: Final = "^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?$"
TEXT: Final = r"^[^\x00]*$"
VARIABLE: Final = "^[A-Za-z_][A-Za-z0-9_]*$"
OBJECT_NAME: Final = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"
OBJECT_KEY: Final = "^[-._a-zA-Z0-9]+$"
HOST: Final = r"^(\*|[a-z0-9]([-.a-z0-9]*[a-z0-9])?)$"
LABEL_NAME: Final = "^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE: Final = "^([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?$"
TENANT: Final = "^[A-Za-z0-9]([A-Za-z0-9._:@-]*[A-Za-z0-9])?$"

PATTERN_WORDS: Final = {
    DNS_LABEL: "lowercase letters, digits and '-', beginning and ending with a letter or digit",
    POOL_NAME: "lowercase letters, digits and '-', beginning with a letter and ending with a letter or digit",
    MODEL_NAME: "letters, digits and any of . _ : / -, beginning and ending with a letter or digit",
    MODEL_ALIAS: "letters, digits and any of . _ : / - *, beginning and ending with a letter, digit or '*'",
    ARGUMENT: "no spaces and no '-' at the beginning",
    OPTIONAL_ARGUMENT: "no spaces and no '-' at the beginning",
    RESOURCE: "a Kubernetes resource such as nvidia.com/gpu, or empty for a CPU",
    SUB_PATH: "names of folders with '/' between them, of letters, digits and any of . _ -, none of them '..'",
    TEXT: "any character but NUL",
    VERSION: "a version such as 0.29.1, or empty",
    VARIABLE: "letters, digits and '_', not beginning with a digit",
    OBJECT_NAME: "lowercase letters, digits, '-' and '.', beginning and ending with a letter or digit",
    OBJECT_KEY: "letters, digits, '-', '_' and '.'",
    HOST: "lowercase letters, digits, '-' and '.', beginning and ending with a letter or digit, or * for any host",
    LABEL_NAME: "a label of Kubernetes such as app or example.com/fleet",
    LABEL_VALUE: "letters, digits and any of . _ -, beginning and ending with a letter or digit",
    TENANT: "letters, digits and any of . _ : @ -, beginning and ending with a letter or digit",
}
"""Each pattern in words, for messages."""

MAX_MIB: Final = 16_777_216
MAX_POOL_NAME: Final = 52
"""Leaves room, in the 63 characters of a label or a Service's name, for what the operator appends."""

FREE: Final[JsonDict] = {"x-kubernetes-preserve-unknown-fields": True}
BY_NAME: Final[JsonDict] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""Of a list that is a map by its items' names."""

MiB = Annotated[int, Field(ge=0, le=MAX_MIB)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Aliases = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=128, pattern=MODEL_ALIAS)], ...],
    Field(strict=False, max_length=32, json_schema_extra={"x-kubernetes-list-type": "set"}),
]
Label = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
PoolName = Annotated[str, Field(min_length=1, max_length=MAX_POOL_NAME, pattern=POOL_NAME)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_NAME)]
ObjectKey = Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_KEY)]
Host = Annotated[str, Field(min_length=1, max_length=253, pattern=HOST)]
Tenant = Annotated[str, Field(min_length=1, max_length=128, pattern=TENANT)]
FreeMap = Annotated[dict[str, JsonValue], Field(json_schema_extra=FREE)]


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint across the fields of one section.

    ``field`` is the path in the section, as in the manifest, at which a violation is shown; ``message`` continues a
    sentence that begins with the value given there. ``words`` makes a better one of the section that breaks the rule,
    as ``cel_message``, an expression, does for the API server.
    """

    field: str
    cel: str
    message: str
    holds: Callable[[Any], bool]
    cel_message: str = ""
    words: Callable[[Any], str] | None = None


def unique_names(field: str, item: str) -> Rule:
    """The rule that no name comes twice in a list that is a map by name; the API server keeps that by itself."""

    def holds(section: Section) -> bool:
        names = [one.name for one in getattr(section, field)]
        return len(set(names)) == len(names)

    return Rule(field=alias(field), cel="", message=f"must not name {item} twice", holds=holds)


def alias(name: str) -> str:
    """The manifest's name of a field: camel case, with MiB as it is written."""
    camel = to_camel(name)
    return f"{camel[:-3]}MiB" if camel.endswith("Mib") else camel


def literal(value: str | float) -> str:
    """A default as displayed text."""
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value) if value != "" else "empty"


class Section(BaseModel):
    """One mapping of a pool: closed, exact about types, immutable.

    A null stands for an absent value, as it does for an API server with defaults in its schema.
    """

    model_config = ConfigDict(
        alias_generator=alias,
        allow_inf_nan=False,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        validate_by_name=True,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    immutable: ClassVar[tuple[str, ...]] = ()
    """Fields that never change in the life of a pool."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {name: value for name, value in given.items() if value is not None or name not in known}

    @model_validator(mode="after")
    def _keeps_rules(self) -> Self:
        broken = [rule for rule in self.rules if not rule.holds(self)]
        if broken:
            raise ValidationError.from_exception_data(type(self).__name__, [_error(rule, self) for rule in broken])
        return self


def _error(rule: Rule, section: Section) -> InitErrorDetails:
    words = rule.words(section) if rule.words else rule.message
    return InitErrorDetails(
        type=PydanticCustomError(RULE, "{words}", {"words": words}), loc=tuple(rule.field.split(".")), input=None
    )
