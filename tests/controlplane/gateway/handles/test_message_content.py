"""Messages that shape the same prompt are named alike; any other difference counts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.handles.conversation_items import items_of, shaping
from cachefleet_controlplane.wire.json_members import parse_fields

MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def message(content: Any, role: str = "user") -> Raw:
    return Raw(msgspec.json.encode({"role": role, "content": content}))


def text(value: Any, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def called(**arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "t", "name": "f", "input": arguments}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([text("a", **MARK)], [text("a")]),
        ([text("a", **MARK)], "a"),
        ([text("a"), text("b", **MARK)], [text("a"), text("b")]),
        ([{"type": "tool_result", "tool_use_id": "t", "content": "x", **MARK}],) * 2,
        ([called(x=1) | MARK], [called(x=1)]),
    ],
)
def test_a_marker_that_moves_on_changes_nothing(one: Any, other: Any) -> None:
    assert bytes(shaping(message(one))) == bytes(shaping(message(other)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([text("a", **MARK)], [text("b")]),
        ([text("a")], [text("a"), text("")]),
        ([text("")], ""),
        ([text(None)], None),
        ([{"type": "thinking", "text": "a"}], "a"),
        ([text("a", citations=[])], "a"),
        ([called(**MARK)], [called()]),
        ([{"type": "tool_result", "content": [text("a", **MARK)]}], [{"type": "tool_result", "content": [text("a")]}]),
    ],
)
def test_whatever_else_differs_counts(one: Any, other: Any) -> None:
    assert bytes(shaping(message(one))) != bytes(shaping(message(other)))


@pytest.mark.parametrize("item", [b"1", b'"a"', b"{}", b'{"content":1}', b'{"content":[1]}', b'{"content":"\xff"}'])
def test_what_is_no_message_is_as_it_is(item: bytes) -> None:
    assert bytes(shaping(Raw(item))) == item


@pytest.mark.parametrize(("endpoint", "alike"), [(Endpoint.MESSAGES, True), (Endpoint.CHAT, False)])
def test_only_messages_are_named_without_markers(endpoint: Endpoint, *, alike: bool) -> None:
    def digest(content: Any) -> bytes:
        body = msgspec.json.encode({"messages": [{"role": "user", "content": content}]})
        found = items_of(endpoint, parse_fields(body), key=b"k", owner=("m",))
        assert found is not None
        return found.whole

    assert (digest([text("a", **MARK)]) == digest("a")) is alike
