"""Conversations through the gateway: checkpoints with the turn, plans by verification, nothing that fails a request."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.tenants.directory import Directory
from cachefleet_core.continuation import prefix_hash
from cachefleet_core.index_contract import RenderProfile
from cachefleet_core.tenancy import DEFAULT_TENANT
from tests.controlplane.gateway.converse.talk import (
    SESSION,
    SYSTEM,
    Chat,
    Kept,
    engines,
    introduce,
    keyed,
    outcomes,
)
from tests.controlplane.gateway.harness import Front, Known, chat, front
from tests.controlplane.waiting import until, value


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


@pytest.fixture
async def gate(kept: Kept) -> AsyncIterator[Front]:
    async with keyed() as one, keyed() as two, front([one, two], turns=kept) as gate:
        introduce(gate)
        yield gate


async def test_a1_a_finished_turn_leaves_what_its_prompt_was(gate: Front, kept: Kept) -> None:
    asked = chat("", messages=[SYSTEM, {"role": "user", "content": "hello"}], return_token_ids=True)
    _, headers, body = await gate.post("/v1/chat/completions", asked, **{SESSION: "s1"})
    ids = json.loads(body)["prompt_token_ids"]
    head = kept.head("s1")
    assert head is not None
    assert head.checkpoint is not None
    found = head.checkpoint
    assert (found.prompt_tokens, found.ends_at_boundary) == (len(ids), True)
    assert found.prefix_tokens == len(ids) - len("assistant\n")
    assert found.prefix_hash == prefix_hash(ids[: found.prefix_tokens])
    assert len(found.keys) == 8 * (found.prefix_tokens // 16)
    assert found.worker.endswith(headers["x-cachefleet-worker"])
    assert found.epoch == f"e{headers['x-cachefleet-worker'][-1]}"
    assert (found.fingerprints.renderer, found.fingerprints.renderer_version) == ("vllm", "0.32.0")
    assert found.fingerprints.effective_instructions_hash
    assert (head.seq, found.seq, found.parent) == (1, 1, None)


async def test_a2_turns_after_the_first_find_what_it_left(gate: Front, kept: Kept) -> None:
    talk = Chat(gate)
    found = [await talk.say(text) for text in ("one", "two", "three")]
    assert found == ["no_checkpoint", "artifact_hit", "artifact_hit"]
    head = kept.head("s1")
    assert head is not None
    assert head.seq == 3
    assert value(gate.metrics, "continuation_turns_total", outcome="artifact_hit") == 2
    assert value(gate.metrics, "continuation_prefix_checks_total", result="pass") == 2
    assert value(gate.metrics, "continuation_lookup_seconds_count") == 3
    assert value(gate.metrics, "continuation_plan_seconds_count") == 3


async def test_a3_each_turn_is_rendered_once(gate: Front) -> None:
    talk = Chat(gate)
    for text in ("one", "two", "three"):
        await talk.say(text)
    asked = [seen.path for engine in engines(gate) for seen in engine.requests]
    assert asked.count("/v1/fleet/keys") == 3
    assert not [path for path in asked if path.endswith("/render")]


async def test_a4_nothing_of_a_prompt_is_in_the_store(gate: Front, kept: Kept) -> None:
    talk = Chat(gate, session="my-secret-name")
    await talk.say("a sentence nobody else says")
    await talk.say("and another one")
    with closing(sqlite3.connect(kept.folder / "kept.db")) as connection:
        dump = "\n".join(connection.iterdump())
    for text in ("nobody", "another one", "be brief", "my-secret-name"):
        assert text not in dump
        assert text.encode().hex().upper() not in dump.upper()


async def test_a14_a_conversation_that_goes_back_is_answered_in_full(gate: Front, kept: Kept) -> None:
    talk = Chat(gate)
    await talk.say("one")
    await talk.say("two")
    talk.messages = [SYSTEM]
    assert await talk.say("something else") == "artifact_miss"
    assert value(gate.metrics, "continuation_full_requests_total", reason="not_a_prefix") == 1
    head = kept.head("s1")
    assert head is not None
    assert head.seq == 3
    assert await talk.say("and on") == "artifact_hit"


@pytest.mark.parametrize("fields", [{"stream": True}, {}], ids=["stream", "whole"])
async def test_a20_a_client_hears_the_end_after_persistence(gate: Front, kept: Kept, fields: dict[str, Any]) -> None:
    await gate.post("/v1/chat/completions", chat("hi", **fields), **{SESSION: "s1"})
    assert kept.head("s1") is not None


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
async def test_other_apis_have_conversations_too(gate: Front, kept: Kept, path: str) -> None:
    body: dict[str, Any] = {"model": "fake", "max_tokens": 4}
    body |= {"prompt": "hello"} if path.endswith("completions") else {"messages": chat("hello")["messages"]}
    for stream in (False, True):
        status, _, _ = await gate.post(path, body | {"stream": stream}, **{SESSION: "s1"})
        assert status == 200
    head = kept.head("s1")
    assert head is not None
    assert head.seq == 2


async def test_a20_a_broken_stream_does_not_advance(gate: Front, kept: Kept) -> None:
    for one in engines(gate):
        one.cut_next_stream(3)
    await gate.post("/v1/chat/completions", chat("hi", stream=True, seed=1, max_tokens=8), **{SESSION: "s1"})
    assert kept.head("s1") is None
    assert outcomes(gate) == ["no_checkpoint"]


async def test_a20_a_cancelled_turn_does_not_advance(kept: Kept) -> None:
    async with keyed(inter_token_seconds=0.05) as worker, front([worker], turns=kept) as gate:
        introduce(gate)
        asked = chat("hi", stream=True, max_tokens=400, ignore_eos=True)
        url = gate.url + "/v1/chat/completions"
        async with gate.http.post(url, json=asked, headers={SESSION: "s1"}) as answer:
            await answer.content.readany()
        await until(lambda: bool(gate.records), 60)
        assert kept.head("s1") is None


async def test_a20_a_refused_request_does_not_advance(gate: Front, kept: Kept) -> None:
    status, _, _ = await gate.post("/v1/chat/completions", chat("hi", temperature=-5), **{SESSION: "s1"})
    assert status == 400
    assert kept.head("s1") is None


async def test_a20_of_concurrent_turns_one_commits_and_all_are_answered(kept: Kept) -> None:
    async with keyed(inter_token_seconds=0.05) as worker, front([worker], turns=kept) as gate:
        introduce(gate)
        await Chat(gate).say("one")
        talks = [gate.post("/v1/chat/completions", chat(f"turn {n}"), **{SESSION: "s1"}) for n in range(4)]
        assert [status for status, _, _ in await asyncio.gather(*talks)] == [200] * 4
        assert outcomes(gate)[1:].count("logical_checkpoint_conflict") == 3
        head = kept.head("s1")
        assert head is not None
        assert head.seq == 2


async def test_a16_a_lost_lookup_costs_no_answer(gate: Front, kept: Kept) -> None:
    await Chat(gate).say("one")
    (kept.folder / "kept.db").unlink()
    assert await Chat(gate).say("two") == "store_failed"
    assert value(gate.metrics, "continuation_store_failures_total", operation="lookup") == 1
    assert await Chat(gate).say("three") == "no_checkpoint"  # the store was made anew


async def test_a16_a_store_that_is_locked_costs_no_answer(gate: Front, kept: Kept) -> None:
    await Chat(gate).say("one")
    with closing(sqlite3.connect(kept.folder / "kept.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert await Chat(gate).say("two") == "store_failed"
    assert value(gate.metrics, "continuation_store_failures_total", operation="commit") == 1
    head = kept.head("s1")
    assert head is not None
    assert head.seq == 1


async def test_a16_all_attempts_have_one_request_id(gate: Front) -> None:
    for one in engines(gate):
        one.fail_next(503)
    talk = Chat(gate)
    for one in engines(gate):
        one.cut_next_stream(3)
    status, _, _ = await gate.settled("/v1/chat/completions", chat("hi", stream=True), **talk.headers)
    assert status == 200
    sent = [s for one in engines(gate) for s in one.requests if s.path == "/v1/chat/completions"]
    assert len(gate.records[-1].attempts) > 1
    named = [{name.lower(): told for name, told in seen.headers.items()}["x-request-id"] for seen in sent]
    assert set(named) == {gate.records[-1].id}


@pytest.mark.parametrize(
    ("profile", "fields", "name"),
    [
        ({"template": "sha256:bb"}, {}, "template_fingerprint"),
        ({"renderer_version": "0.33.0"}, {}, "renderer_version"),
        ({}, {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, "effective_tools_hash"),
        ({}, {"chat_template_kwargs": {"x": 1}}, "template_fingerprint"),
    ],
)
async def test_a6_a11_what_renders_otherwise_is_not_continued(
    gate: Front, profile: dict[str, str], fields: dict[str, Any], name: str
) -> None:
    talk = Chat(gate)
    await talk.say("one")
    same = {"renderer": "vllm", "renderer_version": "0.32.0", "template": "sha256:aa"}
    introduce(gate, profile=RenderProfile(**(same | profile)))
    assert await talk.say("two", **fields) == "fingerprint_mismatch"
    assert value(gate.metrics, "continuation_full_requests_total", reason=name) == 1


async def test_a17_a_new_salt_ends_what_was_remembered(kept: Kept) -> None:
    known = Known()
    async with keyed() as worker, front([worker], turns=kept, known=known) as gate:
        introduce(gate)
        talk = Chat(gate)
        await talk.say("one")
        tenant = TenantRecord(name=DEFAULT_TENANT, salt_version=2)
        known.directory = Directory(tenants={DEFAULT_TENANT: tenant})
        assert await talk.say("two") == "router_receipt_invalid_or_expired"


async def test_a7_without_the_plugin_there_is_a_head_and_no_boundary(kept: Kept) -> None:
    async with keyed(plugin=False) as worker, front([worker], turns=kept) as gate:
        gate.report(0)
        talk = Chat(gate)
        asked = [{"role": "user", "content": text} for text in ("one", "two")]
        for messages in (asked[:1], asked):
            await gate.post("/v1/chat/completions", chat("", messages=messages), **talk.headers)
        assert outcomes(gate) == ["no_checkpoint", "artifact_miss"]
        head = kept.head("s1")
        assert head is not None
        assert head.checkpoint is not None
        assert (head.seq, head.checkpoint.ends_at_boundary) == (2, False)


async def test_without_ids_there_is_a_head_all_the_same(kept: Kept) -> None:
    async with keyed(scale_out=False, plugin=False) as worker, front([worker], turns=kept) as gate:
        talk = Chat(gate)
        for text in ("one", "two"):
            body = {"model": "fake", "messages": chat(text)["messages"], "max_tokens": 4}
            await gate.post("/v1/messages", body, **talk.headers)
        assert outcomes(gate) == ["no_checkpoint", "artifact_miss"]


async def test_a23_what_is_counted_is_what_happened(gate: Front) -> None:
    """What was verified and what came from cache are two accounts, each as the records and answers have it."""
    talk, verified = Chat(gate), 0
    for text in ("one", "two", "three"):
        await talk.say(text)
    talk.messages = [SYSTEM]
    await talk.say("back")
    found = outcomes(gate)
    for outcome in set(found):
        assert value(gate.metrics, "continuation_turns_total", outcome=str(outcome)) == found.count(outcome)
    assert found.count("artifact_hit") == value(gate.metrics, "continuation_prefix_checks_total", result="pass") == 2
    assert value(gate.metrics, "continuation_prefix_checks_total", result="fail") == 1
    # Of each turn's prompt all up to the last start of a message is remembered, and found by its successor.
    verified = sum(record.prompt_tokens - len("assistant\n") for record in gate.records[:2])
    assert value(gate.metrics, "continuation_verified_tokens_total") == verified
    cached = sum(record.cached_tokens or 0 for record in gate.records)
    assert value(gate.metrics, "cached_tokens_total", model="fake") == cached


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a20_a_turn_that_two_workers_answered_commits_once(gate: Front, kept: Kept, *, stream: bool) -> None:
    for one in engines(gate):
        one.hand_back(3)
    asked = chat("hello there", max_tokens=12, ignore_eos=True, stream=stream)
    status, _, _ = await gate.post("/v1/chat/completions", asked, **{SESSION: "s1"})
    assert status == 200
    assert [attempt.outcome for attempt in gate.records[-1].attempts][:-1] == ["handed_back", "handed_back"]
    head = kept.head("s1")
    assert head is not None
    assert head.checkpoint is not None
    # The prompt is the client's own, whatever the last worker was sent; the worker is who ended the answer.
    assert head.seq == 1
    assert head.checkpoint.prompt_tokens == len("<user\nhello there>\n<assistant\n")
    assert head.checkpoint.worker.endswith(gate.records[-1].attempts[-1].worker)


async def test_a20_what_a_gate_refuses_does_not_advance(gate: Front, kept: Kept) -> None:
    """The caller asked for the gate itself: there is no answer, so there is no turn."""
    for one in engines(gate):
        one.gate(0.0)
    asked = chat("nobody has seen this before", cache_hit_threshold=1.0)
    status, _, body = await gate.post("/v1/chat/completions", asked, **{SESSION: "s1"})
    assert status == 200
    assert json.loads(body)["choices"][0]["finish_reason"] == "cache_threshold"
    assert kept.head("s1") is None


async def test_a20_a_turn_that_calls_a_tool_is_ephemeral(gate: Front, kept: Kept) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    asked = chat("hi", tools=[tool], tool_choice="required", max_tokens=64)
    await gate.post("/v1/chat/completions", asked, **{SESSION: "s1"})
    head = kept.head("s1")
    assert head is not None
    assert head.checkpoint is not None
    assert head.checkpoint.status == "ephemeral"
