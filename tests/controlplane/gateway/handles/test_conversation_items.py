"""Digests of beginnings: equal exactly where the bytes, their place and their owner are."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.handles.conversation_items import MAX_ITEMS, Items, items_of
from cachefleet_controlplane.wire.json_members import parse_fields
from cachefleet_core.continuation import PromptCacheRef

REF = PromptCacheRef(
    handle="vllm_prefix_a_1",
    prefix_hash="sha256:" + "0" * 64,
    prefix_token_count=9,
    model="default/m",
    tokenizer_fingerprint="",
    renderer="vllm",
    renderer_version="1",
    template_fingerprint="",
    effective_instructions_hash="",
    effective_tools_hash="",
)
texts = st.lists(st.text(max_size=3), min_size=1, max_size=6)


def items(
    *contents: str,
    endpoint: Endpoint = Endpoint.CHAT,
    key: bytes = b"k",
    owner: tuple[str, ...] = ("m",),
    **more: object,
) -> Items:
    name = "input" if endpoint is Endpoint.RESPONSES else "messages"
    body = msgspec.json.encode({name: [{"role": "user", "content": text} for text in contents], **more})
    found = items_of(endpoint, parse_fields(body), key=key, owner=owner)
    assert found is not None
    return found


@given(texts, texts)
def test_digests_are_equal_as_far_as_the_items_are(one: list[str], other: list[str]) -> None:
    first, second = items(*one), items(*other)
    for count in range(min(len(one), len(other)) + 1):
        assert (first.digests[count] == second.digests[count]) == (one[:count] == other[:count])


@pytest.mark.parametrize(
    "other",
    [
        items("a", "b", key=b"other"),
        items("a", "b", owner=("m", "")),
        items("a", "b", owner=("m2",)),
        items("a", "b", endpoint=Endpoint.MESSAGES),
        items("a", "b", endpoint=Endpoint.RESPONSES),
        items("a", "b", tools=[]),
        items("a", "b", system="s"),
        items("a", "b", instructions="s"),
        items("ab"),
        items("", "ab"),
    ],
)
def test_no_other_owner_or_member_has_the_same_digest(other: Items) -> None:
    assert not set(items("a", "b").digests[1:]) & set(other.digests)


def test_other_members_change_nothing() -> None:
    assert items("a", temperature=0).digests == items("a", stream=True).digests


def test_beginnings_come_longest_first_and_without_the_empty_one() -> None:
    found = items("a", "b")
    assert list(found.beginnings()) == [(2, found.digests[2]), (1, found.digests[1])]
    assert found.whole == found.digests[2]


def test_what_is_left_out_is_what_the_worker_keeps() -> None:
    changes = items("a", "b", tools=[]).after(1, REF)
    assert changes.pop("messages") == Raw(b'[{"role":"user","content":"b"}]')
    assert changes.pop("prompt_cache_ref") == Raw(msgspec.json.encode(REF))
    assert changes == {"tools": None, "instructions": None, "system": None}


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.CHAT, b"{}"),
        (Endpoint.CHAT, b'{"messages":null}'),
        (Endpoint.CHAT, b'{"messages":[]}'),
        (Endpoint.CHAT, b'{"messages":{}}'),
        (Endpoint.RESPONSES, b'{"input":"text"}'),
        (Endpoint.COMPLETIONS, b'{"messages":[1]}'),
        (Endpoint.CHAT, b'{"messages":[%b]}' % b",".join([b"1"] * (MAX_ITEMS + 1))),
    ],
)
def test_what_has_no_list_of_items_is_no_conversation(endpoint: Endpoint, body: bytes) -> None:
    assert items_of(endpoint, parse_fields(body), key=b"k", owner=("m",)) is None
