"""Responses over WebSocket: the same answers as by POST, continued from the connection's memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from websockets.exceptions import InvalidStatus

from cachefleet_controlplane.gateway.responses_socket.socket_limits import SocketLimits
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_controlplane.store.tenant_records import TenantRecord, UsageRecord
from tests.controlplane.gateway.converse.talk import SESSION, STORED, Kept, introduce, keyed, outcomes
from tests.controlplane.gateway.handles.test_handles import ASKED, LONG, carried, talking
from tests.controlplane.gateway.harness import Front, Known, engine, events, front, pool
from tests.controlplane.gateway.responses_socket.sockets import (
    PREVIOUS,
    answer,
    ask,
    connected,
    create,
    refused,
    respond,
    said,
    sent,
)
from tests.controlplane.gateway.retry.test_failover import Scripted, serving
from tests.controlplane.gateway.tenancies import ACME, KEYS, UMBRELLA, directory, record
from tests.controlplane.waiting import until, value
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.requirement("A24")

PATH = "/v1/responses"
NOT_FOUND = (400, PREVIOUS, "previous_response_not_found")


@pytest.fixture
async def worker() -> AsyncIterator[FakeEngine]:
    async with engine() as made:
        yield made


@pytest.fixture
async def gate(worker: FakeEngine) -> AsyncIterator[Front]:
    async with front([worker]) as made:
        yield made


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def shape(event: dict[str, Any]) -> tuple[Any, ...]:
    return event["type"], event["sequence_number"], event.get("delta"), sorted(event)


async def test_events_are_those_of_sse(gate: Front) -> None:
    body = json.loads(create()) | {"stream": True}
    _, _, streamed = await gate.post(PATH, body)
    over_sse = [json.loads(event.partition(b"data: ")[2]) for event in events(streamed)]
    async with connected(gate) as socket:
        await socket.send(create())
        assert [shape(event) for event in await answer(socket)] == [shape(event) for event in over_sse]


async def test_three_turns_send_what_is_new_alone(gate: Front, worker: FakeEngine) -> None:
    async with connected(gate) as socket:
        first = await respond(socket, "one", store=False)
        second = await respond(socket, [{"role": "user", "content": "two"}], first["id"], store=False)
        third = await respond(socket, "three", second["id"], store=False)
    assert [first[PREVIOUS], second[PREVIOUS], third[PREVIOUS]] == [None, first["id"], second["id"]]
    asked = sent(worker)
    assert not {"type", PREVIOUS} & asked.keys()
    assert [item["content"] for item in asked["input"] if item["role"] == "user"] == ["one", "two", "three"]
    assert [item["content"][0]["text"] for item in asked["input"] if item["role"] == "assistant"] == [
        said(first),
        said(second),
    ]
    status, _, whole = await gate.post(PATH, {name: asked[name] for name in ("model", "input", "max_output_tokens")})
    assert (status, said(json.loads(whole))) == (200, said(third))
    assert json.loads(whole)["usage"]["input_tokens"] == third["usage"]["input_tokens"]


async def test_each_create_is_accounted_for_like_a_post(gate: Front) -> None:
    async with connected(gate) as socket:
        first = await respond(socket)
        assert gate.gateway.under_way == 0, "an idle connection is no request"
        assert value(gate.metrics, "websocket_connections") == 1
        await respond(socket, "two", first["id"])
        await refused(socket, create(model="nobody's"))
    await until(lambda: value(gate.metrics, "websocket_connections") == 0)
    assert value(gate.metrics, "websocket_ends_total", reason="gone") == 1
    assert [(one.endpoint, one.status, len(one.attempts)) for one in gate.records] == [(PATH, 200, 1)] * 2
    assert gate.records[1].prompt_tokens > gate.records[0].prompt_tokens
    labels = {"model": "fake", "endpoint": PATH}
    assert value(gate.metrics, "requests_total", status_class="2xx", **labels) == 2
    assert value(gate.metrics, "requests_total", status_class="4xx", endpoint=PATH, model="") == 1
    assert gate.gateway.bodies.held_bytes == 0


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", None),
        ("[]", None),
        ('"x"', None),
        ("\x00", None),
        (b"{}", None),
        ("{}", "type"),
        (create(type="response.steer"), "type"),
        (create(type=7), "type"),
        (create(stream_id="a"), "stream_id"),
        (create(generate="no"), "generate"),
        (create(background=True), "background"),
        (create(conversation="c"), "conversation"),
        (create(previous="x" * 129), PREVIOUS),
        (create(model=7), "model"),
        ("[" * 200 + "]" * 200, None),
        (json.dumps({"type": "response.create", "input": [{}] * 70_000}), None),
    ],
)
async def test_what_cannot_be_taken_is_an_error_event_and_the_connection_goes_on(
    gate: Front, worker: FakeEngine, message: str | bytes, param: str | None
) -> None:
    async with connected(gate) as socket:
        status, named, code = await refused(socket, message)
        assert (status, named, code) == (400, param, "400")
        assert not worker.requests
        assert await respond(socket, generate=True, background=False, stream=False)


async def test_a_worker_s_own_refusal_is_an_error_event(gate: Front) -> None:
    async with connected(gate) as socket:
        last = await ask(socket, create(max_output_tokens=-1))
        assert (last["type"], last["status"], last["error"]["type"]) == ("error", 400, "invalid_request_error")
        assert last["error"]["headers"]["x-cachefleet-worker"] == "demo-0"
        assert await respond(socket)


async def test_an_unknown_previous_response_is_told_and_a_full_create_works(gate: Front, worker: FakeEngine) -> None:
    async with connected(gate) as socket, connected(gate) as other:
        theirs = await respond(other, "theirs")
        before = len(worker.requests)
        for previous in ("resp_" + "0" * 32, theirs["id"]):
            assert await refused(socket, create("two", previous)) == NOT_FOUND
        assert len(worker.requests) == before
        first = await respond(socket, "one")
        assert await refused(socket, create("two", theirs["id"])) == NOT_FOUND
        second = await respond(socket, "two", first["id"])
        assert await refused(socket, create("two", first["id"])) == NOT_FOUND, "the last one alone is kept"
        assert await respond(socket, "three", second["id"])


async def test_a_response_that_failed_leaves_the_one_before(gate: Front) -> None:
    async with connected(gate) as socket:
        first = await respond(socket, "one")
        await refused(socket, create("two", first["id"], max_output_tokens=-1))
        assert await respond(socket, "two", first["id"])


async def test_a_warm_up_computes_the_prompt_and_answers_nothing(gate: Front, worker: FakeEngine) -> None:
    async with connected(gate) as socket:
        await socket.send(create("x" * 64, generate=False, instructions="be brief"))
        events = await answer(socket)
        assert [event["type"] for event in events] == [
            *("response.created", "response.in_progress", "response.completed"),
        ]
        assert [event["sequence_number"] for event in events] == [0, 1, 2]
        warm = events[-1]["response"]
        assert (warm["status"], warm["output"], warm["incomplete_details"]) == ("completed", [], None)
        assert warm["usage"]["output_tokens"] == 1
        asked = sent(worker)
        assert "generate" not in asked
        assert asked["max_output_tokens"] == 1
        await until(lambda: not worker.worker.scheduler.busy)
        first = await respond(socket, "now", warm["id"], instructions="be brief")
        assert first[PREVIOUS] == warm["id"]
        assert first["usage"]["input_tokens_details"]["cached_tokens"] >= 64
    assert [item["content"] for item in sent(worker)["input"]] == ["x" * 64, "now"]
    assert [record.status for record in gate.records] == [200, 200]


async def test_a_warm_up_of_instructions_alone_is_continued(gate: Front, worker: FakeEngine) -> None:
    async with connected(gate) as socket:
        warm = await respond(socket, [], generate=False, instructions="be brief")
        assert await respond(socket, "now", warm["id"], instructions="be brief")
    assert [item["content"] for item in sent(worker)["input"]] == ["now"]


async def test_a_stored_warm_up_is_stored_without_output(kept: Kept) -> None:
    async with keyed() as own, front([own], turns=kept, continuation=STORED) as gate:
        introduce(gate)
        async with connected(gate) as socket:
            warm = await respond(socket, "one", generate=False)
        async with gate.http.get(f"{gate.url}{PATH}/{warm['id']}") as shown:
            assert (await shown.json())["output"] == []
        status, _, _ = await gate.post(PATH, {"model": "fake", "input": "two", PREVIOUS: warm["id"]})
        assert status == 200
    assert [item["content"] for item in sent(own)["input"]] == ["one", "two"]


async def test_what_is_too_long_is_not_remembered(worker: FakeEngine) -> None:
    async with front([worker], sockets=SocketLimits(memory_bytes=400)) as gate, connected(gate) as socket:
        first = await respond(socket, "x")
        long = await respond(socket, "x" * 400, first["id"])
        assert await refused(socket, create("y", long["id"])) == NOT_FOUND
        assert await refused(socket, create("y", first["id"])) == NOT_FOUND


async def test_all_connections_remember_within_one_budget(worker: FakeEngine) -> None:
    async with (
        front([worker], sockets=SocketLimits(all_memory_bytes=1500)) as gate,
        connected(gate) as one,
        connected(gate) as two,
    ):
        first, second = await respond(one, "x" * 300), await respond(two, "x" * 300)
        assert await refused(two, create("y", second["id"])) == NOT_FOUND
        assert await respond(one, "y", first["id"])
        await one.close()
        await until(lambda: value(gate.metrics, "websocket_connections") == 1)
        second = await respond(two, "x" * 300)
        assert await respond(two, "y", second["id"])


async def test_the_handshake_s_headers_are_those_of_each_create(worker: FakeEngine, kept: Kept) -> None:
    async with keyed() as own, front([own], turns=kept) as gate:
        introduce(gate)
        async with connected(gate, **{SESSION: "s1"}) as socket:
            first = await respond(socket, "one " * 20)
            introduce(gate)
            await respond(socket, "two", first["id"])
        asked = [seen for seen in own.requests if seen.path == PATH][-1]
    first_turn, second_turn = outcomes(gate)
    assert first_turn == "no_checkpoint"
    assert second_turn not in {None, "no_checkpoint"}
    names = {name.lower() for name in asked.headers}
    assert not any(name.startswith(("sec-websocket", "x-cachefleet-session", "upgrade")) for name in names)


async def test_other_ids_are_those_of_stored_responses(kept: Kept) -> None:
    async with keyed() as own, front([own], turns=kept, continuation=STORED) as gate:
        introduce(gate)
        async with connected(gate) as socket:
            first = await respond(socket, "one")
            second = await respond(socket, "two", first["id"])
        async with connected(gate) as socket:
            third = await respond(socket, "three", second["id"])
            assert third[PREVIOUS] == second["id"]
            again = await respond(socket, "two again", first["id"])
            assert await respond(socket, "more", again["id"], store=False)
            assert await refused(socket, create("x", "resp_0")) == NOT_FOUND
    users = [item["content"] for item in sent(own)["input"] if item["role"] == "user"]
    assert users == ["one", "two again", "more"]


async def test_below_it_a_turn_goes_by_handle(tmp_path: Path) -> None:
    """So neither the client nor the gateway sends what the worker keeps, though nothing is stored."""
    async with keyed() as own, talking(tmp_path, own) as (gate, _), connected(gate) as socket:
        previous = None
        for turn in range(3):
            response = await respond(socket, [{"role": "user", "content": f"{turn}{LONG}"}], previous, store=False)
            assert carried(own)[-2:] == [(ASKED, 1 if not turn else 2, bool(turn)), (PATH, 0, True)]
            previous = response["id"]


async def test_what_is_stored_is_bounded_as_by_post(kept: Kept) -> None:
    kept.max_bytes = 600
    async with keyed() as own, front([own], turns=kept, continuation=STORED) as gate, connected(gate) as socket:
        first = await respond(socket, "x" * 300)
        assert (await refused(socket, create("y" * 300, first["id"]))) == (413, "input", "413")
        assert await respond(socket, "y" * 300, first["id"], store=False)


async def test_where_nothing_is_stored_nothing_is_looked_up(kept: Kept) -> None:
    async with keyed() as own, front([own], turns=kept) as gate, connected(gate) as socket:
        first = await respond(socket, "one")
        assert (await respond(socket, "two", first["id"]))[PREVIOUS] == first["id"]
        await until(lambda: outcomes(gate) == [None, None])  # told after the answer


async def test_without_a_store_the_connection_s_own_responses_are_continued(kept: Kept) -> None:
    async with keyed() as own, front([own], turns=kept, continuation=STORED) as gate:
        introduce(gate)
        async with connected(gate) as socket:
            first = await respond(socket, "one")
            kept.database.close()
            for file in list(kept.folder.iterdir()):
                file.unlink()
            (kept.folder / "kept.db").mkdir()
            assert (await respond(socket, "two", first["id"]))[PREVIOUS] == first["id"]
            assert (await refused(socket, create("x", "resp_0")))[0] == 503


async def test_whoever_has_no_key_is_refused_before_the_upgrade(worker: FakeEngine) -> None:
    known = Known(directory(ACME, replace(UMBRELLA, disabled=True)))
    async with front([worker], known=known) as gate:
        found = []
        for headers in ({}, {"authorization": "Bearer no"}, {"authorization": f"Bearer {KEYS[UMBRELLA.name]}"}):
            with pytest.raises(InvalidStatus) as caught:
                async with connected(gate, **headers):
                    pass
            told = caught.value.response
            found.append((told.status_code, json.loads(told.body)["error"]["code"]))
        assert found == [(401, "invalid_api_key"), (401, "invalid_api_key"), (403, "tenant_disabled")]
        assert value(gate.metrics, "websocket_refusals_total", status="401") == 2
        async with connected(gate, x_api_key=KEYS[ACME.name]) as socket:
            assert await respond(socket)


async def test_a_revoked_key_is_refused_from_the_next_create_on(worker: FakeEngine) -> None:
    known = Known(directory(ACME))
    headers = {"authorization": f"Bearer {KEYS[ACME.name]}"}
    async with front([worker], known=known) as gate, connected(gate, **headers) as socket:
        first = await respond(socket)
        known.directory = directory(ACME, keys=[record(ACME, revoked=1.0)])
        assert await refused(socket, create("two", first["id"])) == (401, None, "invalid_api_key")
        assert len(gate.records) == 1


async def test_a_tenant_s_limits_hold_for_each_create(worker: FakeEngine) -> None:
    limited = TenantRecord(name=ACME.name, requests_at_once=1)
    headers = {"authorization": f"Bearer {KEYS[ACME.name]}"}
    async with (
        front([worker], known=Known(directory(limited))) as gate,
        connected(gate, **headers) as one,
        connected(gate, **headers) as two,
    ):
        worker.worker.going.clear()
        await one.send(create("slow"))
        await until(lambda: gate.gateway.under_way == 1)
        last = await ask(two, create())
        assert (last["status"], last["error"]["code"]) == (429, "requests_at_once")
        assert last["error"]["headers"]["retry-after"] == "1"
        worker.worker.going.set()
        assert (await answer(one))[-1]["type"] == "response.completed"
        assert await respond(two)


async def test_a_tenant_has_as_many_connections_as_are_free(worker: FakeEngine) -> None:
    known = Known(directory(ACME, UMBRELLA))
    own, others = ({"authorization": f"Bearer {KEYS[one.name]}"} for one in (ACME, UMBRELLA))
    async with front([worker], known=known, sockets=SocketLimits(connections=4)) as gate:
        async with connected(gate, **own), connected(gate, **own):
            with pytest.raises(InvalidStatus, match="503"):
                async with connected(gate, **own):
                    pass
            async with connected(gate, **others) as socket:
                assert await respond(socket)
        await until(lambda: value(gate.metrics, "websocket_connections") == 0)
        async with connected(gate, **own) as socket:
            assert await respond(socket)


@pytest.mark.parametrize(("path", "limits"), [("/v1/chat/completions", {}), ("/", {}), (PATH, {"connections": 0})])
async def test_there_is_no_other_websocket(worker: FakeEngine, path: str, limits: dict[str, int]) -> None:
    async with front([worker], sockets=SocketLimits(**limits)) as gate:
        with pytest.raises(InvalidStatus, match="404"):
            async with connected(gate, path):
                pass


async def test_a_plain_get_is_told_to_upgrade(gate: Front) -> None:
    async with gate.http.get(gate.url + PATH) as told:
        assert (told.status, told.headers["upgrade"]) == (426, "websocket")
        assert "WebSocket" in (await told.json())["error"]["message"]


async def test_a_page_of_another_origin_needs_a_key(gate: Front) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        async with connected(gate, origin="http://evil.example"):
            pass
    async with connected(gate, origin=gate.url) as socket:
        assert await respond(socket)
    async with connected(gate, origin="http://evil.example", authorization="Bearer any") as socket:
        assert await respond(socket)


class BreaksOff(Scripted):
    """Drops the connection after its first words."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        told = {"type": "response.output_text.delta", "delta": "a", "sequence_number": 0}
        await response.write(b"event: response.output_text.delta\ndata: " + json.dumps(told).encode() + b"\n\n")
        assert request.transport is not None
        request.transport.abort()
        return response


async def test_an_answer_that_breaks_off_is_an_error_event_of_the_same_shape() -> None:
    async with serving(BreaksOff()) as broken, front([broken]) as gate, connected(gate) as socket:
        await socket.send(create())
        delta, last = await answer(socket)
        assert delta["delta"] == "a"
        assert (last["type"], last["status"], last["error"]["code"]) == ("error", 502, "502")
        assert last["sequence_number"] == 1
        assert (await refused(socket, create(model="no"))) == (404, "model", "model_not_found")


def nameless(*args: Any) -> str:
    fields = json.loads(create(*args))
    del fields["model"]
    return json.dumps(fields)


async def test_a_model_that_was_named_once_holds_for_the_connection(gate: Front, worker: FakeEngine) -> None:
    other = pool(model="other")
    other = other.model_copy(update={"metadata": other.metadata.model_copy(update={"name": "other"})})
    gate.fleet.update_pools([PoolView(pool(), gate.endpoints()), PoolView(other, ())])
    async with connected(gate) as socket:
        assert await refused(socket, nameless()) == (400, "model", "missing_required_parameter")
        first = await respond(socket, "one")
        for message in (nameless("two", first["id"]), nameless("three")):
            assert (await ask(socket, message))["type"] == "response.completed"
            assert sent(worker)["model"] == "fake"
    assert [one.model for one in gate.records] == ["fake"] * 3


async def test_the_handshake_and_its_errors_name_the_request(gate: Front) -> None:
    async with connected(gate) as socket:
        assert socket.response is not None
        assert socket.response.headers["x-request-id"]
        last = await ask(socket, create(model="nope"))
        assert last["error"]["headers"]["x-request-id"]
    with pytest.raises(InvalidStatus) as denied:
        async with connected(gate, "/v1/nowhere"):
            pass
    assert denied.value.response.headers["x-request-id"]
    async with connected(gate, "//v1/responses/") as socket:
        await respond(socket)


async def test_an_answer_that_ends_incomplete_is_accounted_for_in_every_form() -> None:
    used: list[UsageRecord] = []
    async with engine(natural_tokens=100) as worker, front([worker], used=used.append) as gate:
        body = {"model": "fake", "input": "hello", "max_output_tokens": 8}
        for stream in (False, True):
            status, _, told = await gate.post(PATH, body | {"stream": stream})
            assert (status, b'"status":"incomplete"' in told) == (200, True)
        async with connected(gate) as socket:
            assert (await ask(socket, create(max_output_tokens=8)))["response"]["status"] == "incomplete"
        await until(lambda: len(used) == 3)
    assert [(one.completion_tokens, one.prompt_tokens > 0) for one in used] == [(8, True)] * 3
    assert all(record.cached_tokens is not None for record in gate.records)
