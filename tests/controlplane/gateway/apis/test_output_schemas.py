"""JSON schemas for answers: references that go round without end are a 400, all others are the engine's affair."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cachefleet_controlplane.gateway.apis.output_schemas import endless_reference
from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.wire.errors import ApiError

D = {"$ref": "#/$defs/d"}
TREE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["value", "children"],
}
ENDLESS: dict[str, dict[str, Any]] = {
    "itself": {"$ref": "#"},
    "a definition of itself": {"$defs": {"d": D}, **D},
    "two of each other": {"$defs": {"d": {"$ref": "#/$defs/e"}, "e": D}, **D},
    "the only choice": {"$defs": {"d": {"anyOf": [D]}}, **D},
    "the only one of": {"oneOf": [{"$ref": "#"}]},
    "each choice": {"$defs": {"d": {"anyOf": [D, {"$ref": "#/$defs/e"}]}, "e": {"allOf": [D]}}, **D},
    "all of": {"$defs": {"d": {"allOf": [D]}}, **D},
    "all of, with a type": {"type": "object", "allOf": [{"$ref": "#"}]},
    "a member": {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
    "another member": {"type": "object", "additionalProperties": {"$ref": "#/additionalProperties"}},
    "a member of an item": {"type": "array", "items": {"properties": {"a": D}}, "$defs": {"d": D}},
    "an escaped name": {"$defs": {"a/b ~": {"$ref": "#/$defs/a~1b%20~0"}}, "$ref": "#/$defs/a~1b ~0"},
    "a list's part": {"allOf": [{"$ref": "#/allOf/0"}]},
}
ENDING: dict[str, Any] = {
    "a tree": TREE,
    "a linked list": {
        "$defs": {"d": {"type": "object", "properties": {"next": {"anyOf": [D, {"type": "null"}]}}}},
        **D,
    },
    "two of each other by members": {
        "$defs": {"d": {"properties": {"e": {"$ref": "#/$defs/e"}}}, "e": {"properties": {"d": D}}},
        **D,
    },
    "a member that needs itself": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "itself or text": {"$defs": {"d": {"anyOf": [D, {"type": "string"}]}}, **D},
    "itself or anything": {"$defs": {"d": {"anyOf": [D, True]}}, **D},
    "an empty list": {"type": "array", "items": D, "$defs": {"d": D}},
    "never used": {"type": "string", "$defs": {"d": D}},
    "nothing there": {"$ref": "#/$defs/none"},
    "beyond a list": {"$ref": "#/allOf/7", "allOf": [{}]},
    "another document": {"$ref": "https://example.org/schema"},
    "a name": {"$ref": "#name"},
    "no text": {"$ref": 7},
    "true": True,
    "a list": [],
}
PLACES: list[tuple[Endpoint, str]] = [
    (Endpoint.CHAT, "response_format.json_schema.schema"),
    (Endpoint.CHAT, "structured_outputs.json"),
    (Endpoint.COMPLETIONS, "response_format.json_schema.schema"),
    (Endpoint.RESPONSES, "text.format.schema"),
    (Endpoint.MESSAGES, "output_config.format.schema"),
]


def body_with(place: str, schema: Any) -> bytes:
    value = schema
    for name in reversed(place.split(".")):
        value = {name: value}
    return json.dumps({"model": "m", "messages": [], "input": "", "prompt": "", "max_tokens": 1, **value}).encode()


@pytest.mark.parametrize("name", ENDLESS)
def test_references_without_end_are_seen(name: str) -> None:
    assert str(endless_reference(ENDLESS[name])).startswith("#")


@pytest.mark.parametrize("name", ENDING)
def test_references_that_end_are_the_engines_affair(name: str) -> None:
    assert endless_reference(ENDING[name]) is None


@pytest.mark.parametrize(("endpoint", "place"), PLACES)
def test_a_schema_without_end_is_refused_by_name(endpoint: Endpoint, place: str) -> None:
    with pytest.raises(ApiError, match=f"`{place}`: the reference '#' leads back to itself") as refused:
        parse(body_with(place, {"$ref": "#"}), endpoint)
    assert (refused.value.status, refused.value.param) == (400, place)
    assert parse(body_with(place, TREE), endpoint).endpoint is endpoint


@pytest.mark.parametrize(
    ("endpoint", "tool", "where"),
    [
        (Endpoint.CHAT, {"function": {"parameters": {"$ref": "#"}}}, "tools[1].function.parameters"),
        (Endpoint.RESPONSES, {"parameters": {"$ref": "#"}}, "tools[1].parameters"),
        (Endpoint.MESSAGES, {"input_schema": {"$ref": "#"}}, "tools[1].input_schema"),
    ],
)
def test_of_tools_only_strict_ones_are_refused(endpoint: Endpoint, tool: dict[str, Any], where: str) -> None:
    """A model is not held to the parameters of others by vLLM."""
    parse(body_with("tools", [7, tool]), endpoint)
    strict = {"function": tool["function"] | {"strict": True}} if "function" in tool else tool | {"strict": True}
    with pytest.raises(ApiError) as refused:
        parse(body_with("tools", [7, strict]), endpoint)
    assert (refused.value.status, refused.value.param) == (400, where)


def test_a_schema_as_text_is_read_too() -> None:
    with pytest.raises(ApiError, match="structured_outputs"):
        parse(body_with("structured_outputs.json", json.dumps({"$ref": "#"})), Endpoint.CHAT)
    parse(body_with("structured_outputs.json", '{"$ref": "#'), Endpoint.CHAT)  # vLLM says that it is no JSON


def test_long_chains_and_many_ways_take_no_time() -> None:
    """Each definition leads twice to the next: 2 to the power of 20,000 ways."""
    last = 20_000
    for end, endless in (({"type": "string"}, False), ({"$ref": "#/$defs/0"}, True)):
        following = {
            str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}, {"$ref": f"#/$defs/{n + 1}"}]} for n in range(last)
        }
        assert (endless_reference({"$ref": "#/$defs/0", "$defs": following | {str(last): end}}) is not None) is endless
