"""How the models of one alias share its conversations."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from cachefleet_controlplane.gateway.admit.alias_choice import chosen, conversation_of
from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo

SYSTEM = {"role": "system", "content": "You are terse."}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text, **more}]}


def asked(endpoint: Endpoint, **body: Any) -> RequestInfo:
    return parse(json.dumps(body).encode(), endpoint)


def conversation(info: RequestInfo, tenant: str = "t", **headers: str) -> bytes:
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return conversation_of(info, given, tenant)


def shared(*weights: int) -> list[str]:
    shares = [(f"m{number}", f"m{number}", weight) for number, weight in enumerate(weights)]
    return [chosen(shares, b"%d" % one) for one in range(20_000)]


def test_each_gets_its_share_of_all_conversations() -> None:
    counts = Counter(shared(90, 10))
    assert counts["m1"] == pytest.approx(2_000, rel=0.1)
    counts = Counter(shared(1, 1, 2))
    assert [counts[name] for name in ("m0", "m1", "m2")] == pytest.approx([5_000, 5_000, 10_000], rel=0.1)


def test_of_a_changed_weight_only_so_many_conversations_move_as_must() -> None:
    before, after = shared(90, 10), shared(80, 20)
    moved = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
    assert {one for one, _ in moved} == {"m0"}, "none goes back"
    assert len(moved) == pytest.approx(2_000, rel=0.2)


def test_all_turns_of_a_chat_are_one_conversation() -> None:
    first = asked(Endpoint.CHAT, messages=[SYSTEM, said("hello")])
    later = asked(
        Endpoint.CHAT, messages=[SYSTEM | {"content": "now"}, said("hello"), {"role": "assistant"}, said("and?")]
    )
    other = asked(Endpoint.CHAT, messages=[SYSTEM, said("bye")])
    assert conversation(first) == conversation(later) != conversation(other)
    assert conversation(first) != conversation(first, tenant="u")


def test_a_marker_of_what_to_cache_moves_on_and_changes_nothing() -> None:
    first = asked(Endpoint.MESSAGES, messages=[said("hello", cache_control={"type": "ephemeral"})], max_tokens=1)
    later = asked(Endpoint.MESSAGES, messages=[said("hello"), said("and?")], max_tokens=1)
    assert conversation(first) == conversation(later)


@pytest.mark.parametrize(
    ("endpoint", "one", "same", "other"),
    [
        (Endpoint.RESPONSES, {"input": "a"}, {"input": "a", "instructions": "x"}, {"input": "b"}),
        (
            Endpoint.RESPONSES,
            {"input": [{"type": "message", "role": "user", "content": "a", "id": "1"}]},
            {"input": [{"type": "message", "role": "user", "content": "a"}, {"role": "user", "content": "c"}]},
            {"input": [{"type": "message", "role": "user", "content": "b"}]},
        ),
        (Endpoint.COMPLETIONS, {"prompt": "x" * 2000}, {"prompt": "x" * 2000 + "y"}, {"prompt": "y" * 2000}),
        (Endpoint.EMBEDDINGS, {"input": ["a"]}, {"input": ["a"]}, {"input": ["b"]}),
        (Endpoint.CHAT, {"messages": [SYSTEM]}, {"messages": [SYSTEM]}, {"messages": []}),
    ],
)
def test_every_api_has_a_beginning(
    endpoint: Endpoint, one: dict[str, Any], same: dict[str, Any], other: dict[str, Any]
) -> None:
    first, again, another = (conversation(asked(endpoint, **body)) for body in (one, same, other))
    assert first == again != another


def test_a_name_for_the_conversation_goes_before_its_key_and_that_before_its_words() -> None:
    one = asked(Endpoint.CHAT, messages=[said("a")], prompt_cache_key="k")
    other = asked(Endpoint.CHAT, messages=[said("b")], prompt_cache_key="k")
    assert conversation(one) == conversation(other)
    assert conversation(one, x_cachefleet_session="1") != conversation(other, x_cachefleet_session="2")
    assert conversation(one, x_claude_code_session_id="1") == conversation(other, x_claude_code_session_id="1")
