"""Requests by handle through the gateway: what workers are sent, and that answers are those to the whole body."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from cachefleet_controlplane.gateway.converse.certification.canary import MATCH, MISMATCH
from cachefleet_controlplane.gateway.converse.turn_plan import TurnOutcome
from cachefleet_controlplane.gateway.handles.sending import HandleOutcome
from cachefleet_core.continuation import CONVERSATION_HEADER
from cachefleet_core.report_frames import Capability
from tests.controlplane.gateway.converse.certification.test_certify import served
from tests.controlplane.gateway.converse.talk import PROFILE, SESSION, Chat, Kept, keyed
from tests.controlplane.gateway.harness import MODEL, Front, Known, chat, direct, front
from tests.controlplane.gateway.tenancies import ACME, KEYS, UMBRELLA, directory
from tests.fakes.engine import FakeEngine

MODES: Final = {"keys": "render", "prompts": "on", "conversations": "on"}
ON: Final = tuple(Capability(feature=name, mode=mode) for name, mode in MODES.items())
HANDLES: Final = "{handles: true}"
LONG: Final = "a long question about the weather " * 40


def introduce(gate: Front, *, capabilities: tuple[Capability, ...] = ON, profile: Any = PROFILE) -> None:
    for number in range(len(gate.engines)):
        gate.report(number, said={"capabilities": capabilities, "profile": profile})


@asynccontextmanager
async def talking(
    folder: Path,
    *workers: FakeEngine,
    certified: bool = True,
    continuation: str = HANDLES,
    known: Known | None = None,
    **kept: Any,
) -> AsyncIterator[tuple[Front, Kept]]:
    made = Kept(folder, **kept)
    parts = {"turns": made, "handles": made.handles, "known": known, "isolation": "Shared" if known else "PerTenant"}
    async with front(workers, continuation=continuation, **parts) as gate:  # type: ignore[arg-type]
        introduce(gate)
        if certified:
            await made.examiner.certify(served(gate), chats=2, seed=7)
        for worker in workers:
            worker.requests.clear()
        try:
            yield gate, made
        finally:
            made.canaries.close()


def bodies(worker: FakeEngine, path: str = "") -> list[dict[str, Any]]:
    return [json.loads(seen.body) for seen in worker.requests if seen.body and seen.path.startswith(path or "/v1/")]


def carried(worker: FakeEngine) -> list[tuple[str, int, bool]]:
    """Of each request: its path, how many items it has, and whether it refers to a handle."""
    asked = [(seen.path, json.loads(seen.body)) for seen in worker.requests if seen.method == "POST"]
    return [(path, len(body.get("messages", body.get("input"))), "prompt_cache_ref" in body) for path, body in asked]


ASKED, CHATS = "/v1/fleet/keys", "/v1/chat/completions"


async def test_a3_a_turn_carries_only_what_is_new(tmp_path: Path) -> None:
    async with keyed() as worker, talking(tmp_path, worker) as (gate, _):
        messages = [{"role": "user", "content": LONG}]
        assert (await gate.post(CHATS, chat("", messages=messages)))[0] == 200
        assert carried(worker) == [(ASKED, 1, False), (CHATS, 0, True)]
        worker.requests.clear()
        more = [*messages, {"role": "assistant", "content": "yes"}, {"role": "user", "content": LONG + "and now"}]
        status, told, answer = await gate.post(CHATS, chat("", messages=more, temperature=0))
        assert carried(worker) == [(ASKED, 2, True), (CHATS, 0, True)]
        assert (status, CONVERSATION_HEADER in told) == (200, False)
        plain = await direct(worker, CHATS, chat("", messages=more, temperature=0))
        assert json.loads(answer)["usage"]["prompt_tokens"] == json.loads(plain[1])["usage"]["prompt_tokens"]
        assert [record.continuation for record in gate.records] == [None, HandleOutcome.HIT]


APIS: Final[list[tuple[str, str, dict[str, Any]]]] = [
    (CHATS, "messages", {"max_tokens": 2, "tools": []}),
    ("/v1/messages", "messages", {"max_tokens": 2, "system": "be brief"}),
    ("/v1/responses", "input", {"max_output_tokens": 2, "instructions": "be brief", "store": False}),
]


def billed(turn: int) -> str:
    """What Claude Code begins its system text with; another one in each request."""
    return f"x-anthropic-billing-header: cc_version=2.1.17; cch={turn:05x};"


BILLED: Final[list[tuple[str, Any]]] = [
    ("/v1/messages", lambda turn: {"system": [{"type": "text", "text": billed(turn)}, {"type": "text", "text": LONG}]}),
    ("/v1/messages", lambda turn: {"system": f"{billed(turn)}\n{LONG}"}),
    ("/v1/responses", lambda turn: {"instructions": f"{billed(turn)}\n{LONG}"}),
    (CHATS, lambda turn: {"messages": [{"role": "system", "content": f"{billed(turn)}\n{LONG}"}]}),
    (CHATS, lambda turn: {"messages": [{"role": "system", "content": [{"type": "text", "text": billed(turn)}]}]}),
]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("path", "system"), BILLED, ids=["blocks", "text", "responses", "chat", "chat-parts"])
async def test_a_text_that_the_renderer_leaves_out_breaks_no_conversation(
    tmp_path: Path, path: str, system: Any, *, named: bool
) -> None:
    """What such a line says is none of the conversation's: the prompts' tokens begin alike, as a canary sees."""
    async with keyed() as worker, talking(tmp_path, worker, canary_ratio=1.0) as (gate, kept):
        items: list[dict[str, Any]] = [{"role": "user", "content": LONG}]
        for turn in range(4):
            fields = dict(system(turn))
            name = "input" if path == "/v1/responses" else "messages"
            body = {"model": MODEL, "max_tokens": 2, name: [*fields.pop("messages", []), *items]} | fields
            status, _, answer = await gate.post(path, body, **({SESSION: "s1"} if named else {}))
            assert status == 200, answer
            await kept.unseen.settled()
            await kept.canaries.settled()
            items += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": f"{turn}{LONG}"}]
        outcomes = [record.continuation for record in gate.records]
        assert outcomes[2:] == [HandleOutcome.HIT] * 2, outcomes
        canaries = "cachefleet_continuation_canaries_total"
        assert gate.metrics.registry.get_sample_value(canaries, {"result": MISMATCH}) in {None, 0.0}
        assert gate.metrics.registry.get_sample_value(canaries, {"result": MATCH}) == 2.0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "name", "fields"), APIS, ids=[path for path, _, _ in APIS])
async def test_every_api_with_a_list_goes_by_handle(
    tmp_path: Path, path: str, name: str, fields: dict[str, Any], *, stream: bool
) -> None:
    async with keyed() as worker, talking(tmp_path, worker) as (gate, _):
        items = [{"role": "user", "content": LONG}]
        for turn in range(3):
            body = {"model": MODEL, name: items, "stream": stream} | fields
            status, _, answer = await gate.post(path, body)
            assert status == 200, answer
            assert carried(worker)[-2:] == [(ASKED, 1 if not turn else 2, bool(turn)), (path, 0, True)]
            kept = {"tools", "system", "instructions"} & fields.keys()
            assert not kept & bodies(worker)[-1].keys()
            items += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": f"{turn}{LONG}"}]
        assert [record.continuation for record in gate.records] == [None, HandleOutcome.HIT, HandleOutcome.HIT]


async def test_a9_a_handle_is_for_its_own_worker_alone(tmp_path: Path) -> None:
    """Requests at once spread over both workers; nobody is sent a handle that it did not give."""
    async with keyed() as first, keyed() as second, talking(tmp_path, first, second) as (gate, _):
        messages = [{"role": "user", "content": LONG}]
        for turn in range(4):
            body = chat("", messages=messages, max_tokens=20)
            answers = await asyncio.gather(*(gate.post(CHATS, body) for _ in range(8)))
            assert {status for status, _, _ in answers} == {200}
            messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": f"{turn}{LONG}"}]
        for worker in (first, second):
            assert worker.plugin.conversations.store.stats()["handle_unknown"] == 0
            assert worker.plugin.conversations.store.stats()["continued"] > 0


async def test_a8_a_worker_that_starts_anew_is_sent_the_whole_in_the_same_attempt(tmp_path: Path) -> None:
    async with keyed() as worker, talking(tmp_path, worker) as (gate, _):
        messages = [{"role": "user", "content": LONG}]
        await gate.post(CHATS, chat("", messages=messages))
        worker.plugin.conversations.store.clear()
        worker.requests.clear()
        messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": LONG}]
        status, _, _ = await gate.post(CHATS, chat("", messages=messages))
        assert carried(worker) == [(ASKED, 2, True), (ASKED, 3, False), (CHATS, 0, True)]
        assert (status, len(gate.records[-1].attempts)) == (200, 1)
        assert gate.records[-1].continuation == HandleOutcome.MISS


async def test_what_is_lost_between_keys_and_answer_is_sent_whole(tmp_path: Path) -> None:
    async with keyed() as worker, talking(tmp_path, worker) as (gate, _):
        store, body = worker.plugin.conversations.store, chat(LONG)
        store.resize(0)  # nothing stays
        assert (await gate.post(CHATS, body))[0] == 200
        assert carried(worker) == [(ASKED, 1, False), (CHATS, 1, False)]


@pytest.mark.parametrize(
    ("options", "capabilities"),
    [({"certified": False}, ON), ({"continuation": "{handles: false}"}, ON), ({}, ON[:2])],
    ids=["not certified", "not wanted", "an older plugin"],
)
async def test_a21_everything_else_is_sent_whole_without_a_word_of_it(
    tmp_path: Path, options: dict[str, Any], capabilities: tuple[Capability, ...]
) -> None:
    async with keyed() as worker, talking(tmp_path, worker, **options) as (gate, _):
        introduce(gate, capabilities=capabilities)
        messages = [{"role": "user", "content": LONG}]
        for _ in range(2):
            assert (await gate.post(CHATS, chat("", messages=messages)))[0] == 200
            messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": LONG}]
        assert all(not refers for _, _, refers in carried(worker))
        assert not any(CONVERSATION_HEADER in seen.headers for seen in worker.requests)
        assert [record.continuation for record in gate.records] == [None, None]


async def test_the_rest_of_an_answer_is_not_kept_as_the_conversation(tmp_path: Path) -> None:
    """It is asked for by token ids, of another API: no handle of that continues the conversation's messages."""
    async with keyed() as first, keyed() as second, talking(tmp_path, first, second) as (gate, _):
        for worker in (first, second):
            worker.hand_back(3)
        body = chat(LONG, max_tokens=12, ignore_eos=True, return_token_ids=True)
        assert (await gate.post(CHATS, body))[0] == 200
        outcomes = [attempt.outcome for attempt in gate.records[-1].attempts]
        assert outcomes == ["handed_back", "handed_back", "answered"]
        sent = [seen for worker in (first, second) for seen in worker.requests if seen.method == "POST"]
        kept = {(seen.path, CONVERSATION_HEADER in seen.headers) for seen in sent if seen.path.startswith("/v1/")}
        assert kept == {(ASKED, True), (CHATS, True), ("/v1/completions", False)}


@pytest.mark.parametrize("name", ["prompt_cache_ref", "append_token_ids", "return_prompt_cache_ref"])
@pytest.mark.parametrize("path", [CHATS, "/v1/responses", "/v1/messages"])
async def test_a_client_of_these_apis_names_no_handle(tmp_path: Path, path: str, name: str) -> None:
    async with keyed() as worker, talking(tmp_path, worker) as (gate, _):
        item = [{"role": "user", "content": "a"}]
        body = {"model": MODEL, "messages": item, "input": item, "max_tokens": 2, "store": False, name: {"handle": "x"}}
        headers = {CONVERSATION_HEADER.replace("-", "_"): "{}"}
        assert (await gate.post(path, body, **headers))[0] == 200
        assert not any(name in sent for sent in bodies(worker))


async def test_another_tenants_beginning_is_not_known(tmp_path: Path) -> None:
    """The same conversation, of two tenants whose blocks are shared: each is remembered for its own tenant."""
    known = Known(directory(ACME, UMBRELLA))
    async with keyed() as worker, talking(tmp_path, worker, known=known) as (gate, _):
        messages = [{"role": "user", "content": LONG}]
        for who, outcome in ((ACME, None), (UMBRELLA, None), (ACME, HandleOutcome.HIT)):
            bearer = f"Bearer {KEYS[who.name]}"
            status, _, answer = await gate.post(CHATS, chat("", messages=messages), authorization=bearer)
            assert (status, gate.records[-1].continuation) == (200, outcome), answer


async def test_a_named_conversation_tells_of_its_handle(tmp_path: Path) -> None:
    async with keyed() as worker, talking(tmp_path, worker) as (gate, _):
        talk = Chat(gate)
        talk.messages = [{"role": "system", "content": LONG}]
        found = []
        for text in ("one", "two", "three"):
            found.append(await talk.say(text))
            introduce(gate)
        assert found == [TurnOutcome.NO_CHECKPOINT, TurnOutcome.SHORTCUT_HIT, TurnOutcome.SHORTCUT_HIT]
        counted = gate.metrics.registry.get_sample_value(
            "cachefleet_continuation_turns_total", {"outcome": TurnOutcome.SHORTCUT_HIT}
        )
        assert counted == 2
        assert talk.headers == {SESSION: "s1"}


@pytest.mark.parametrize("lying", [False, True])
async def test_a21_a_canary_compares_with_a_plain_render_of_the_whole(tmp_path: Path, *, lying: bool) -> None:
    async with keyed() as worker, talking(tmp_path, worker, canary_ratio=1.0) as (gate, made):
        messages = [{"role": "user", "content": LONG}]
        await gate.post(CHATS, chat("", messages=messages))
        if lying:  # what it says it rendered is something else
            ids = worker.plugin.conversations._ids
            worker.plugin.conversations._ids = lambda api, body: [*ids(api, body)[:-1], 7]
        messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": LONG}]
        await gate.post(CHATS, chat("", messages=messages))
        await made.canaries.settled()
        result = MISMATCH if lying else MATCH
        assert gate.metrics.registry.get_sample_value("cachefleet_continuation_canaries_total", {"result": result}) == 1
        assert all(one.certified is not lying for one in made.certificates.all())
        worker.requests.clear()
        await gate.post(CHATS, chat("", messages=messages))
        assert any(refers for _, _, refers in carried(worker)) is not lying


async def test_a_stored_response_is_continued_by_handle(tmp_path: Path) -> None:
    """The store has the conversation, in case; the worker is sent what is new."""
    responses = "/v1/responses"
    async with (
        keyed() as worker,
        talking(tmp_path, worker, continuation="{handles: true, storeHistory: true}") as (gate, _),
    ):
        fields: dict[str, Any] = {"model": MODEL, "max_output_tokens": 2, "input": [{"role": "user", "content": LONG}]}
        for turn in range(3):
            status, _, answer = await gate.post(responses, fields)
            assert status == 200, answer
            new = 1 if not turn else 2  # the answer, and the next question
            assert carried(worker)[-2:] == [(ASKED, new, bool(turn)), (responses, 0, True)]
            more = [{"role": "user", "content": f"{turn}{LONG}"}]
            fields |= {"previous_response_id": json.loads(answer)["id"], "input": more}
        assert [record.continuation for record in gate.records][1:] == [TurnOutcome.SHORTCUT_HIT] * 2
