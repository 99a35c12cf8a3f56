"""``previous_response_id``: stored only where pools allow it, sealed, for its tenant alone, and rendered in full."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest

from cachefleet_controlplane.gateway.converse.retention import allowance
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_controlplane.store.tenant_records import KeyRecord, TenantRecord
from cachefleet_controlplane.tenants.directory import Directory
from cachefleet_core.tenancy import TenantId, api_key_hash
from tests.controlplane.gateway.apis.client_setup import clients
from tests.controlplane.gateway.apis.test_responses import told
from tests.controlplane.gateway.converse.talk import STORED, Kept, introduce, keyed, outcomes
from tests.controlplane.gateway.harness import FLEET_KEY, MODEL, Front, Known, front, pool
from tests.fakes.engine import FakeEngine

PATH = "/v1/responses"
PREVIOUS = "previous_response_id"
LONG = "the same long beginning of every prompt " * 12


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


@pytest.fixture
async def gate(kept: Kept) -> AsyncIterator[Front]:
    async with keyed() as one, keyed() as two, front([one, two], turns=kept, continuation=STORED) as gate:
        introduce(gate)
        yield gate


def body(text: Any = "hello", previous: str = "", **changes: Any) -> dict[str, Any]:
    more = {PREVIOUS: previous} if previous else {}
    return {"model": MODEL, "input": text, "max_output_tokens": 4} | more | changes


async def respond(gate: Front, text: Any = "hello", previous: str = "", **changes: Any) -> dict[str, Any]:
    status, _, data = await gate.post(PATH, body(text, previous, **changes))
    assert status == 200, data
    introduce(gate)
    answer = told(data)[-1]["response"] if changes.get("stream") else json.loads(data)
    assert isinstance(answer, dict)
    return answer


def last_sent(gate: Front) -> dict[str, Any]:
    """What a worker was asked for last."""
    engines = [each for each in gate.engines if isinstance(each, FakeEngine)]
    seen = [seen for each in engines for seen in each.requests if seen.path == PATH]
    found: dict[str, Any] = json.loads(max(seen, key=lambda one: one.at).body)
    return found


async def fetch(gate: Front, method: str, name: str, **headers: str) -> tuple[int, dict[str, Any]]:
    async with gate.http.request(method, f"{gate.url}{PATH}/{name}", headers=headers) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize("stream", [False, True])
async def test_a12_a_worker_gets_the_whole_conversation(gate: Front, *, stream: bool) -> None:
    first = await respond(gate, "one", stream=stream, instructions="be brief")
    second = await respond(gate, [{"role": "user", "content": "two"}], first["id"], stream=stream)
    third = await respond(gate, "three", second["id"], stream=stream)
    sent = last_sent(gate)
    user = [{"role": "user", "content": text, "type": "message"} for text in ("one", "three")]
    wanted = [user[0], *first["output"], {"role": "user", "content": "two"}, *second["output"], user[1]]
    assert sent["input"] == wanted
    assert (PREVIOUS not in sent, "instructions" not in sent, sent["store"]) == (True, True, False)
    assert [each[PREVIOUS] for each in (first, second, third)] == [None, first["id"], second["id"]]
    assert outcomes(gate)[0] == "no_checkpoint"
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


async def test_a12_it_is_placed_by_the_full_prompt(gate: Front) -> None:
    """The marginal input alone would be cold everywhere."""
    first = await respond(gate, LONG)
    worker = gate.records[-1].worker
    for text in ("two", "three", "four"):
        await respond(gate, text, first["id"])
        record = gate.records[-1]
        assert (record.worker, record.knowledge) == (worker, "exact")
        assert record.predicted_tokens > 400


async def test_a12_a_dry_decision_is_of_the_full_prompt_too(gate: Front) -> None:
    first = await respond(gate, LONG)
    status, _, data = await gate.post("/v1/route", body("two", first["id"]))
    assert status == 200
    assert json.loads(data)["prompt_tokens"] > 480
    explained = await gate.gateway.explain(json.dumps(body("two", first["id"])).encode())
    assert explained.prompt_tokens == json.loads(data)["prompt_tokens"]


async def test_a18_two_branches_of_one_response_both_go_on(gate: Front) -> None:
    first = await respond(gate, "one")
    left = await respond(gate, "left", first["id"])
    right = await respond(gate, "right", first["id"])
    for branch, text in ((left, "left"), (right, "right")):
        await respond(gate, "on", branch["id"])
        said = [item["content"] for item in last_sent(gate)["input"] if item["role"] == "user"]
        assert said == ["one", text, "on"]


async def test_a20_concurrent_turns_on_one_response(kept: Kept) -> None:
    async with keyed(inter_token_seconds=0.05) as worker, front([worker], turns=kept, continuation=STORED) as gate:
        introduce(gate)
        first = await respond(gate, "one")
        both = await asyncio.gather(*(respond(gate, text, first["id"]) for text in ("left", "right")))
        assert outcomes(gate)[1:].count("logical_checkpoint_conflict") == 1
        for each in both:  # the one that came too late has its answer, and may be gone on with
            await respond(gate, "on", each["id"])


async def test_a20_the_end_is_told_after_persistence(gate: Front) -> None:
    for stream in (True, False):
        answer = await respond(gate, "one", stream=stream)
        status, stored = await fetch(gate, "GET", answer["id"])
        assert (status, stored) == (200, answer)


async def test_a20_a_response_that_broke_is_not_stored(gate: Front) -> None:
    for one in gate.engines:
        assert isinstance(one, FakeEngine)
        one.cut_next_stream(3)
    _, _, data = await gate.post(PATH, body("one", stream=True))
    created = told(data)[0]["response"]["id"]
    assert (await fetch(gate, "GET", created))[0] == 404


async def test_what_is_stored_is_shown_and_deleted(gate: Front) -> None:
    answer = await respond(gate, "one")
    assert (await fetch(gate, "GET", answer["id"]))[1] == answer
    deleted = {"id": answer["id"], "object": "response", "deleted": True}
    assert await fetch(gate, "DELETE", answer["id"]) == (200, deleted)
    for method in ("GET", "DELETE"):
        status, told_error = await fetch(gate, method, answer["id"])
        assert (status, told_error["error"]["param"]) == (404, "response_id")
    status, _, data = await gate.post(PATH, body("two", answer["id"]))
    assert (status, json.loads(data)["error"]["param"]) == (404, PREVIOUS)


async def test_store_false_stores_nothing(gate: Front) -> None:
    answer = await respond(gate, "one", store=False)
    assert (await fetch(gate, "GET", answer["id"]))[0] == 404
    first = await respond(gate, "one")
    second = await respond(gate, "two", first["id"], store=False)
    assert (await fetch(gate, "GET", second["id"]))[0] == 404
    assert await respond(gate, "three", first["id"])


@pytest.mark.parametrize("no", [0, "false", "no"])
async def test_so_does_whatever_else_the_engine_takes_for_false(gate: Front, no: Any) -> None:
    first = await respond(gate, "one", store=no)
    assert (await fetch(gate, "GET", first["id"]))[0] == 404


async def test_what_is_no_id_never_gets_to_the_store(gate: Front, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL takes no NUL for text, and what it refuses would have everybody leave the store alone for a while."""
    first = await respond(gate, "one")
    asked: list[str] = []
    ask = kept.store_thread.ask

    async def noted(operation: str, work: Any) -> Any:
        asked.append(operation)
        return await ask(operation, work)

    monkeypatch.setattr(kept.store_thread, "ask", noted)
    status, _, _ = await gate.post(PATH, body("two", f"{first['id']}\0"))
    found = [(await fetch(gate, method, "a%00b"))[0] for method in ("GET", "DELETE")]
    assert ([status, *found], asked) == ([400, 404, 404], [])


async def test_it_is_forgotten_in_time(gate: Front, kept: Kept) -> None:
    answer = await respond(gate, "one")
    kept.later = 3601
    assert (await fetch(gate, "GET", answer["id"]))[0] == 404
    status, _, _ = await gate.post(PATH, body("two", answer["id"]))
    assert status == 404
    await kept.store_thread.prune()
    with closing(sqlite3.connect(kept.folder / "kept.db")) as connection:
        assert connection.execute("SELECT count(*) FROM responses").fetchone() == (0,)


async def test_nothing_of_it_can_be_read_in_the_store(gate: Front, kept: Kept) -> None:
    answer = await respond(gate, "a sentence nobody else says")
    said = answer["output"][0]["content"][0]["text"]
    for file in kept.folder.iterdir():
        data = file.read_bytes()
        assert b"nobody else" not in data
        assert said.encode() not in data


async def test_another_tenants_response_is_as_unknown_as_none(kept: Kept) -> None:
    names = [TenantId("acme"), TenantId("umbrella")]
    keys = {
        key.hash: key
        for key in (
            KeyRecord(
                id=name, tenant=name, hash=api_key_hash(FLEET_KEY.api_key_hash_key, name.encode()), hint="", created=0.0
            )
            for name in names
        )
    }
    directory = Directory(tenants={name: TenantRecord(name=name) for name in names}, keys=keys)
    async with keyed() as worker, front([worker], turns=kept, continuation=STORED, known=Known(directory)) as gate:
        introduce(gate)
        _, _, data = await gate.post(PATH, body("one"), authorization="Bearer acme")
        name = json.loads(data)["id"]
        assert (await fetch(gate, "GET", name, authorization="Bearer acme"))[0] == 200
        told_errors = []
        for one in (name, "resp_" + "0" * (len(name) - 5)):
            for method in ("GET", "DELETE"):
                status, error = await fetch(gate, method, one, authorization="Bearer umbrella")
                told_errors.append((status, json.dumps(error).replace(one, "")))
            status, _, data = await gate.post(PATH, body("two", one), authorization="Bearer umbrella")
            told_errors.append((status, data.decode().replace(one, "")))
        assert told_errors[:3] == told_errors[3:]
        assert {status for status, _ in told_errors} == {404}
        assert (await fetch(gate, "GET", name, authorization="Bearer acme"))[0] == 200


@pytest.mark.parametrize("setting", ["{}", "{storeHistory: false}", "{enabled: false, storeHistory: true}"])
async def test_where_nothing_is_stored_it_is_a_400_that_says_what_to_set(kept: Kept, setting: str) -> None:
    async with keyed() as worker, front([worker], turns=kept, continuation=setting) as gate:
        status, _, data = await gate.post(PATH, body("two", "resp_1"))
        error = json.loads(data)["error"]
        assert (status, error["param"]) == (400, PREVIOUS)
        assert "spec.continuation.storeHistory" in error["message"]
        assert not worker.requests
        assert (await fetch(gate, "GET", "resp_1"))[0] == 400
        answer = await respond(gate, "one")
        assert outcomes(gate)[-1] is None
        assert (await fetch(gate, "GET", answer["id"]))[0] == 400


async def test_where_one_pool_stores_and_another_does_not_nothing_is_stored() -> None:
    both = [pool(continuation="{storeHistory: true, handles: true, ttlSeconds: 60}"), pool()]
    found = allowance(both)
    assert (found.enabled, found.history, found.handles, found.ttl_seconds) == (True, False, False, 60.0)
    assert allowance(both[:1]).history
    assert not allowance([]).enabled


@pytest.mark.parametrize("previous", ["x" * 129, 7, ["r"], {}])
async def test_an_id_that_is_none_is_a_400(gate: Front, previous: Any) -> None:
    status, _, data = await gate.post(PATH, body() | {PREVIOUS: previous})
    assert (status, json.loads(data)["error"]["param"]) == (400, PREVIOUS)


@pytest.mark.parametrize("given", [7, {"a": 1}, True])
async def test_input_that_is_none_is_a_400(gate: Front, given: Any) -> None:
    first = await respond(gate, "one")
    status, _, data = await gate.post(PATH, body(given, first["id"]))
    assert (status, json.loads(data)["error"]["param"]) == (400, "input")


async def test_what_is_too_long_to_be_stored_is_a_413(kept: Kept) -> None:
    kept.max_bytes = 200
    async with keyed() as worker, front([worker], turns=kept, continuation=STORED) as gate:
        introduce(gate)
        status, _, data = await gate.post(PATH, body("x" * 300))
        assert status == 413
        assert "CACHEFLEET_CONTINUATION_HISTORY_BYTES" in json.loads(data)["error"]["message"]
        assert await respond(gate, "x" * 300, store=False)
        first = await respond(gate, "x" * 190)
        assert (await gate.post(PATH, body("two", first["id"])))[0] == 413
        assert await respond(gate, "two", first["id"], store=False)


async def test_a_store_that_fails_answers_but_what_needs_it(gate: Front, kept: Kept) -> None:
    first = await respond(gate, "one")
    kept.database.close()
    for file in list(kept.folder.iterdir()):
        file.unlink()
    (kept.folder / "kept.db").mkdir()
    status, headers, _ = await gate.post(PATH, body("two", first["id"]))
    assert (status, "retry-after" in headers) == (503, True)
    assert (await fetch(gate, "GET", first["id"]))[0] == 503
    assert await respond(gate, "one")
    assert outcomes(gate)[-1] == "store_failed"


async def test_the_official_client_continues_shows_and_deletes(gate: Front) -> None:
    async with clients(gate.url, model=MODEL).openai as client:
        first = await client.responses.create(model=MODEL, input="one", max_output_tokens=4)
        introduce(gate)
        async with client.responses.stream(
            model=MODEL, input="two", previous_response_id=first.id, max_output_tokens=4
        ) as stream:
            second = await stream.get_final_response()
        assert second.previous_response_id == first.id
        shown = await client.responses.retrieve(second.id)
        assert shown.output_text == second.output_text
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)
        third = await client.responses.create(model=MODEL, input="three", previous_response_id=second.id)
        assert third.usage is not None
        said = [item["content"] for item in last_sent(gate)["input"] if item["role"] == "user"]
        assert said == ["one", "two", "three"]


async def test_background_and_conversation_stay_refused(gate: Front) -> None:
    for name, given in (("background", True), ("conversation", "c")):
        status, _, data = await gate.post(PATH, body() | {name: given})
        assert (status, json.loads(data)["error"]["param"]) == (400, name)
    status, refused = await fetch(gate, "POST", "r/cancel")
    assert (status, refused["error"]["code"]) == (400, "unsupported_operation")


def two_models(gate: Front) -> None:
    """The same workers under another name, too, in a pool of its own."""
    other = pool(model="other", continuation=STORED)
    other = other.model_copy(update={"metadata": other.metadata.model_copy(update={"name": "other"})})
    gate.fleet.update_pools([PoolView(pool(continuation=STORED), gate.endpoints()), PoolView(other, ())])


async def test_a_follow_up_need_not_name_the_model_again(gate: Front) -> None:
    first = await respond(gate, "one")
    two_models(gate)
    asked = body("two", first["id"])
    del asked["model"]
    for path in (PATH, "/v1/route", f"{PATH}/input_tokens"):
        status, _, data = await gate.post(path, asked)
        assert status == 200, data
    assert {record.model for record in gate.records} == {f"default/{MODEL}"} | {gate.records[0].model}
    assert last_sent(gate)["model"] == MODEL
    unknown = asked | {PREVIOUS: "resp_unknown"}
    status, _, data = await gate.post(PATH, unknown)
    error = json.loads(data)["error"]
    assert (status, error["param"], "Valid names: fake, other" in error["message"]) == (400, "model", True)


async def test_without_a_conversation_the_model_must_be_named_where_there_are_two(gate: Front) -> None:
    two_models(gate)
    status, _, data = await gate.post(PATH, {"input": "x"})
    error = json.loads(data)["error"]
    assert (status, error["param"], error["code"]) == (400, "model", "missing_required_parameter")
    assert gate.records == []


async def test_input_items_of_a_stored_response_are_listed(gate: Front) -> None:
    first = await respond(gate, "one")
    second = await respond(gate, [{"role": "user", "content": "two"}], first["id"])
    async with clients(gate.url, model=MODEL).openai as client:
        newest = await client.responses.input_items.list(second["id"])
        oldest = await client.responses.input_items.list(second["id"], order="asc", limit=2)
        pages = [item.id async for item in client.responses.input_items.list(second["id"], order="asc", limit=1)]
        with pytest.raises(openai.NotFoundError):
            await client.responses.input_items.list("resp_unknown")
    said: list[Any] = [item.to_dict() for item in reversed(newest.data)]
    assert [item["role"] for item in said] == ["user", "assistant", "user"]
    assert [said[0]["content"][0]["text"], said[2]["content"][0]["text"]] == ["one", "two"]
    assert said[1]["id"] == first["output"][0]["id"]
    assert (len(oldest.data), oldest.has_more, pages) == (2, True, [item["id"] for item in said])


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "after=nobody"])
async def test_a_page_that_cannot_be_is_a_400(gate: Front, query: str) -> None:
    first = await respond(gate, "one")
    status, told = await fetch(gate, "GET", f"{first['id']}/input_items?{query}")
    assert (status, told["error"]["param"]) == (400, query.partition("=")[0])


async def test_tokens_of_an_input_are_counted(gate: Front) -> None:
    first = await respond(gate, "one")
    async with clients(gate.url, model=MODEL).openai as client:
        told = await client.responses.input_tokens.count(model=MODEL, input="one")
        assert (told.object, told.input_tokens) == ("response.input_tokens", first["usage"]["input_tokens"])
        more = await client.responses.input_tokens.count(model=MODEL, input="two", previous_response_id=first["id"])
        assert more.input_tokens > told.input_tokens
    assert gate.fleet.view().inflight_requests == 0


async def test_tokens_that_nobody_counts_are_no_guess() -> None:
    async with front([]) as gate:
        status, headers, _ = await gate.post(f"{PATH}/input_tokens", {"model": MODEL, "input": "x"})
        assert (status, "retry-after" in headers) == (503, True)


async def test_compaction_is_refused_by_its_true_reason(gate: Front) -> None:
    status, _, data = await gate.post(f"{PATH}/compact", body())
    error = json.loads(data)["error"]
    assert (status, error["code"], "encrypted item" in error["message"]) == (400, "unsupported_operation", True)
