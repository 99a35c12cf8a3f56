"""Conversations by name: who may name them, how long they live, and what they prefer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cachefleet_controlplane.gateway.converse.sessions import ConversationState, session_name
from cachefleet_controlplane.pools.source import PoolView
from tests.controlplane.gateway.converse.talk import SESSION, Chat, Kept, engines, introduce, keyed, outcomes
from tests.controlplane.gateway.harness import Front, chat, front, pool


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


@pytest.fixture
async def gate(kept: Kept) -> AsyncIterator[Front]:
    async with keyed() as one, keyed() as two, front([one, two], turns=kept) as gate:
        introduce(gate)
        yield gate


async def test_a18_an_expired_conversation_begins_anew(gate: Front, kept: Kept) -> None:
    talk = Chat(gate)
    await talk.say("one")
    kept.later = 3601
    assert await talk.say("two") == "artifact_expired"
    head = kept.head("s1")
    assert head is not None
    assert head.seq == 1
    assert await talk.say("three") == "artifact_hit"


async def test_a18_a_client_says_when_it_pauses_and_when_it_is_over(gate: Front, kept: Kept) -> None:
    for state in ConversationState:
        headers = {SESSION: "s1", "x-cachefleet-session-state": state}
        status, _, body = await gate.post("/v1/chat/completions", chat("hi"), **headers)
        if state is ConversationState.EXPIRED:
            assert (status, json.loads(body)["error"]["param"]) == (400, "x-cachefleet-session-state")
            continue
        head = kept.head("s1")
        assert head is not None
        assert head.state is state


async def test_a18_where_nothing_else_tells_the_last_worker_is_preferred(kept: Kept) -> None:
    """No reports: all workers are alike, and turns would go round."""
    async with keyed() as one, keyed() as two, keyed() as three, front([one, two, three], turns=kept) as gate:
        for _ in range(6):
            await gate.post("/v1/chat/completions", chat("hi"), **{SESSION: "s1"})
        assert len({record.worker for record in gate.records}) == 1
        for _ in range(6):
            await gate.post("/v1/chat/completions", chat("hi"))
        assert len({record.worker for record in gate.records}) == 3


async def test_a18_a_longer_match_elsewhere_wins(gate: Front) -> None:
    talk = Chat(gate)
    await talk.say("one")
    first = gate.records[-1].worker
    other = next(number for number in (0, 1) if not first.endswith(str(number)))
    talk.messages.append({"role": "user", "content": "two " * 50})
    asked = chat("", messages=talk.messages)
    gate.fleet.update_pools([])
    await _only(gate, other, asked)
    _, headers, _ = await gate.post("/v1/chat/completions", asked, **talk.headers)
    assert headers["x-cachefleet-worker"].endswith(str(other))


async def _only(gate: Front, number: int, asked: dict[str, Any]) -> None:
    """Have one worker compute a prompt, and both report again."""
    ends = gate.endpoints()
    gate.fleet.update_pools([PoolView(pool(), (ends[number],))])
    introduce(gate, number)
    status, _, _ = await gate.post("/v1/chat/completions", asked)
    assert status == 200
    gate.fleet.update_pools([PoolView(pool(), ends)])
    introduce(gate)


@pytest.mark.parametrize("name", ["", " ", "a b", "\u00e9", "x" * 257])
async def test_a_name_that_is_none_is_a_400(gate: Front, name: str) -> None:
    status, _, body = await gate.post("/v1/chat/completions", chat("hi"), **{SESSION: name})
    assert (status, json.loads(body)["error"]["param"]) == (400, SESSION)
    assert not any(seen.path.startswith("/v1/chat") for one in engines(gate) for seen in one.requests)


async def test_the_name_goes_to_no_worker(gate: Front) -> None:
    await Chat(gate, session="mine").say("one")
    seen = [seen for one in engines(gate) for seen in one.requests]
    assert not [one for one in seen if "mine" in repr(one.headers) or SESSION in {h.lower() for h in one.headers}]


async def test_where_a_pool_keeps_none_the_name_is_ignored(kept: Kept) -> None:
    async with keyed() as worker, front([worker], turns=kept, continuation="{enabled: false}") as gate:
        introduce(gate)
        for name in ("s1", "not a name"):
            assert (await gate.post("/v1/chat/completions", chat("hi"), **{SESSION: name}))[0] == 200
        assert outcomes(gate) == ["off", "off"]
        assert not (kept.folder / "kept.db").exists()


async def test_without_a_name_nothing_is_kept(gate: Front, kept: Kept) -> None:
    assert (await gate.chat("hi"))[0] == 200
    assert outcomes(gate) == [None]
    assert not (kept.folder / "kept.db").exists()


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({"x-claude-code-session-id": "a"}, {"x-claude-code-session-id": "a"}, True),
        ({"x-claude-code-session-id": "a"}, {"x-claude-code-session-id": "a", "x-claude-code-agent-id": "s"}, False),
        ({"x-opencode-session": "a"}, {"x-opencode-session": "b"}, False),
        ({"x-session-affinity": "a"}, {"x-opencode-session": "a"}, False),
        ({"session-id": "a", "thread-id": "1"}, {"session-id": "a", "thread-id": "2"}, False),
        ({"session_id": "a"}, {"session_id": "a"}, True),
        ({SESSION: "a"}, {"x-opencode-session": "a"}, False),
        ({SESSION: "a"}, {SESSION: "a", "x-opencode-session": "b"}, True),
    ],
)
def test_agents_name_their_conversations_where_nobody_else_does(
    first: dict[str, str], second: dict[str, str], *, same: bool
) -> None:
    names = [session_name([(k.encode(), v.encode()) for k, v in sent.items()]) for sent in (first, second)]
    assert all(names)
    assert (names[0] == names[1]) is same


@pytest.mark.parametrize("name", ["", "a b", "\u00e9", "x" * 257])
def test_an_agents_name_that_cannot_be_is_ignored(name: str) -> None:
    assert session_name([(b"x-claude-code-session-id", name.encode()), (b"session-id", b"s")]).endswith(
        b"session-id s "
    )
    assert session_name([(b"x-claude-code-session-id", name.encode())]) == b""


async def test_an_agents_conversation_is_continued_and_its_name_goes_to_no_worker(gate: Front) -> None:
    talk = Chat(gate, session="")
    talk.headers = {"x-claude-code-session-id": "mine", "x-claude-code-agent-id": "sub"}
    assert await talk.say("one") == "no_checkpoint"
    assert await talk.say("two") == "artifact_hit"
    seen = [seen for one in engines(gate) for seen in one.requests]
    assert not [one for one in seen if "mine" in repr(one.headers) or "x-claude-code" in repr(one.headers).lower()]
