"""A client's own names of media are its tenant's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from cachefleet_controlplane.gateway.apis.parse import parse, upstream_body, with_own_names
from cachefleet_controlplane.gateway.apis.request_info import Endpoint

PART = {"type": "image_url", "image_url": None, "uuid": "cat"}


def names(messages: Any, salt: str = "s") -> list[Any]:
    """Of the parts of the first message."""
    given = json.loads(bytes(with_own_names(Raw(json.dumps(messages).encode()), salt=salt)))
    return [part.get("uuid") for part in given[0]["content"]]


def test_a17_one_tenant_s_name_is_nothing_to_another() -> None:
    messages = [{"role": "user", "content": [PART, PART | {"uuid": "dog"}, {"type": "text", "text": "uuid"}]}]
    cat, dog, none = names(messages, "one")
    assert (cat, none) == (names(messages, "one")[0], None)
    assert len({cat, dog, *names(messages, "two")[:2], "cat", "dog"}) == 6


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.MESSAGES])
def test_a17_no_worker_sees_a_client_s_name(endpoint: Endpoint) -> None:
    member = "input" if endpoint is Endpoint.RESPONSES else "messages"
    inner = {"type": "tool_result", "content": [PART]}
    body = {"model": "m", member: [{"role": "user", "content": [PART, inner]}], "max_tokens": 1}
    sent, _ = upstream_body(parse(json.dumps(body).encode(), endpoint), model="m", salt="s")
    assert b'"cat"' not in sent
    assert sent.count(b'"uuid"') == 2
    shared, _ = upstream_body(parse(json.dumps(body).encode(), endpoint), model="m", salt="")
    assert shared.count(b'"cat"') == 2, "blocks that all share are shared by name, too"


def test_an_escape_hides_no_name() -> None:
    hidden = Raw(b'[{"role":"user","content":[{"type":"image_url","\\u0075uid":"c\\u0061t"}]}]')
    (part,) = json.loads(bytes(with_own_names(hidden, salt="s")))[0]["content"]
    assert part["uuid"] == names([{"role": "user", "content": [PART]}])[0]


@pytest.mark.parametrize(
    "messages",
    ["[]", '"uuid"', '[{"content": "uuid"}]', '[{"content": [{"text": "\\u00fc"}]}, 1]', '[{"uuid": null}]', "[{]"],
)
def test_every_other_byte_stays(messages: str) -> None:
    raw = Raw(messages.encode())
    assert bytes(with_own_names(raw, salt="s")) == messages.encode()
