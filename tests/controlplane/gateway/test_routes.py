"""Routes, bounds and errors in OpenAI's shape."""

import asyncio
import json
from itertools import product
from typing import Any

import pytest

from cachefleet_controlplane.gateway.admit.model_lookup import MODELS_NAMED
from cachefleet_controlplane.gateway.admit.request_bodies import GatewayBounds
from cachefleet_controlplane.gateway.know.prompt_lookup import PromptLookup
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_controlplane.wire.errors import MAX_SHOWN
from cachefleet_core.pool.spec import PrefixCachePool
from tests.controlplane.gateway.harness import MODEL, Front, chat, engine, front, pool
from tests.controlplane.waiting import until, value

NAMED = ("unknown_url", "model_not_found")
LONG = "the same long beginning of every prompt " * 12


def error(body: bytes) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(body)["error"]
    assert told.keys() == {"message", "type", "param", "code"}
    return told


async def test_what_is_not_here_is_told_as_openai_does() -> None:
    asked = [
        ("GET", "/", 404),
        ("POST", "/v1/none", 404),
        ("POST", "/v1/audio/speech", 404),
        ("GET", "/v1/realtime", 404),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/v1/responses", 426),
        ("PUT", "/v1/responses/resp_1", 405),
        ("PUT", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/models/other", 404),
        ("GET", "/metrics", 404),
        ("GET", "/admin/v1/pools", 404),
    ]
    async with front([]) as gate:
        for method, path, status in asked:
            async with gate.http.request(method, gate.url + path) as answer:
                assert (path, answer.status) == (path, status)
                assert error(await answer.read())["code"] in {str(status), *NAMED}


SERVED = {
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/completions": {"model": MODEL, "prompt": "x", "max_tokens": 2},
    "/v1/responses": {"model": MODEL, "input": "x", "max_output_tokens": 2},
    "/v1/messages": {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
}


@pytest.mark.parametrize("path", SERVED)
async def test_slashes_too_many_change_nothing(path: str) -> None:
    async with engine() as worker, front([worker]) as gate:
        for asked in (
            "/" + path,
            path.replace("/v1/", "/v1//"),
            path + "/",
            path + "?beta=true",
            path + "//?beta=true",
        ):
            status, _, body = await gate.post(asked, SERVED[path])
            assert (asked, status) == (asked, 200), body
        assert {record.endpoint for record in gate.records} == {path}
        async with gate.http.get(gate.url + "//v1/models//" + MODEL + "/") as answer:
            assert (await answer.json())["id"] == MODEL


@pytest.mark.parametrize("path", SERVED)
async def test_a_near_miss_is_a_404_that_names_the_path_in_the_apis_own_shape(path: str) -> None:
    async with front([]) as gate:
        for asked in ("/v1" + path, path.removeprefix("/v1"), "/api" + path):
            status, _, body = await gate.post(asked, SERVED[path])
            told = json.loads(body)
            assert (status, f"Use {path}: set the base URL" in told["error"]["message"]) == (404, True)
            assert (told.get("type") == "error") == (path == "/v1/messages")


async def test_models() -> None:
    async with front([]) as gate:
        async with gate.http.get(gate.url + "/v1/models") as answer:
            listed = (await answer.json())["data"]
        async with gate.http.get(f"{gate.url}/v1/models/{MODEL}") as answer:
            assert await answer.json() == listed[0]
    assert [(card["id"], card["object"], card["owned_by"]) for card in listed] == [(MODEL, "model", "cachefleet")]


async def test_bad_bodies() -> None:
    unknown = json.dumps(chat("x", model="other")).encode()
    bodies = [(b"{", 400), (b"[]", 400), (b'{"model":7}', 400), (unknown, 404), (b"x" * 2000, 413)]
    bounds = GatewayBounds(body_bytes=1000, body_seconds=5, requests=10)
    async with engine() as worker, front([worker], bounds=bounds) as gate:
        for path, (body, status) in product(("/v1/chat/completions", "/v1/completions", "/v1/route"), bodies):
            got, _, told = await gate.post(path, body)
            assert (path, got) == (path, status)
            assert error(told)["code"] in {str(status), *NAMED}
        assert not worker.requests


async def test_a_body_without_length_is_bounded_as_well() -> None:
    async def pour() -> Any:
        for _ in range(100):
            yield b"x" * 1000

    bounds = GatewayBounds(body_bytes=10_000, body_seconds=5, requests=10)
    async with front([], bounds=bounds) as gate, gate.http.post(gate.url + "/v1/completions", data=pour()) as answer:
        assert answer.status == 413
        assert answer.headers["connection"] == "close"


async def test_a_body_that_does_not_come_is_a_408() -> None:
    bounds = GatewayBounds(body_bytes=10_000, body_seconds=0.2, requests=10)
    async with front([], bounds=bounds) as gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gate.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 30)
        assert await asyncio.wait_for(reader.read(), 30)  # to its end: the connection is closed
        writer.close()


async def test_no_ready_worker_is_a_503_that_says_when_to_come_back() -> None:
    async with engine() as worker, front([worker], ready=False) as gate:
        status, headers, body = await gate.chat("x")
    assert (status, headers["retry-after"], error(body)["code"]) == (503, "2", "503")
    assert gate.records[0].verdict == "reject"
    assert value(gate.metrics, "refusals_total", verdict="reject", reason="no_ready_worker") == 1


async def test_a_model_may_be_left_out_where_there_is_one() -> None:
    async with engine() as worker, front([worker]) as gate:
        body = chat("x")
        del body["model"]
        assert (await gate.post("/v1/chat/completions", body))[0] == 200


async def test_an_unknown_model_is_answered_with_some_of_those_there_are() -> None:
    async with front([]) as gate:
        gate.fleet.update_pools([PoolView(_named(f"m{number:02}"), ()) for number in range(MODELS_NAMED + 3)])
        _, _, body = await gate.post("/v1/completions", {"model": "x", "prompt": "y"})
        told = error(body)["message"]
        assert told.startswith("The model `x` does not exist. Valid names: m00, m01, ")
        assert told.endswith("m15 and 3 more (GET /v1/models).")
        _, _, body = await gate.post("/v1/completions", {"prompt": "y"})
        assert error(body)["message"].startswith("`model` is required. Valid names: m00, ")
        _, _, body = await gate.post("/v1/completions", {"model": "x" * 10_000, "prompt": "y"})
        assert error(body)["message"].startswith(f"The model `{'x' * MAX_SHOWN}...` does not exist.")
        gate.fleet.update_pools([])
        _, _, body = await gate.post("/v1/completions", {"model": "x", "prompt": "y"})
        assert error(body)["message"] == "The model `x` does not exist. There are no models yet."


def _named(model: str) -> PrefixCachePool:
    declared = pool(model=model)
    return declared.model_copy(update={"metadata": declared.metadata.model_copy(update={"name": model})})


async def test_a_route_that_no_worker_has_is_told_as_what_the_model_lacks() -> None:
    async with engine() as worker, front([worker]) as gate:
        status, _, body = await gate.post("/v1/embeddings", {"model": MODEL, "input": "x"})
        message = "The model `fake` has no embeddings: only pooling models have them (`--runner pooling`)."
        assert (status, error(body)["message"]) == (404, message)


async def test_a_prompt_shorter_than_a_block_says_so() -> None:
    async with engine() as worker, front([worker]) as gate:
        gate.report(0)
        reasons = [(await _route(gate, {"prompt": [1] * size}))["reason"] for size in (15, 16)]
    assert reasons == ["short_prompt", "cold"]


async def test_the_number_of_requests_is_bounded() -> None:
    bounds = GatewayBounds(body_bytes=10_000, body_seconds=5, requests=1)
    async with engine() as worker, front([worker], bounds=bounds) as gate:
        worker.hang()
        first = asyncio.ensure_future(gate.chat("x"))
        await until(lambda: gate.gateway.under_way == 1)
        status, headers, _ = await gate.chat("y")
        assert (status, "retry-after" in headers) == (503, True)
        worker.resume()
        assert (await first)[0] == 200


async def _route(gate: Front, body: dict[str, Any]) -> dict[str, Any]:
    status, _, answer = await gate.post("/v1/route", body)
    assert status == 200, answer
    decided: dict[str, Any] = json.loads(answer)
    return decided


async def test_a_decision_alone() -> None:
    async with engine() as one, engine() as two, front([one, two]) as gate:
        await gate.chat(LONG)
        for number in (0, 1):
            gate.report(number)
        asked = sum(len(worker.requests) for worker in (one, two))
        decided = await _route(gate, chat(LONG))
        assert gate.fleet.view().inflight_requests == 0
        # One question to a renderer, nothing else.
        assert sum(len(worker.requests) for worker in (one, two)) == asked + 1
    holder = gate.records[0].worker
    assert (decided["worker"], decided["verdict"], decided["knowledge"]) == (holder, "route", "exact")
    assert decided["rendered_by"] == "render"
    assert decided["predicted_tokens"] > 0
    assert {one["worker"]: one["chosen"] for one in decided["candidates"]} == {
        name: name == holder for name in ("demo-0", "demo-1")
    }
    assert gate.records[-1].endpoint == "/v1/route"


async def test_a_decision_says_which_endpoint_it_is_about() -> None:
    async with engine() as worker, front([worker]) as gate:
        gate.report(0)
        ids = {"model": MODEL, "prompt": [1, 2, 3]}
        assert (await _route(gate, ids))["rendered_by"] == "client"
        assert (await _route(gate, ids | {"endpoint": "/v1/completions"}))["prompt_tokens"] == 3
        status, _, body = await gate.post("/v1/route", ids | {"endpoint": "/v1/realtime"})
        assert (status, error(body)["param"]) == (400, "endpoint")
        status, _, body = await gate.post("/v1/route", b'{"endpoint":7}')
        assert (status, error(body)["param"]) == (400, "endpoint")


async def test_no_blocks_are_sought_for_more_ids_than_any_worker_takes() -> None:
    async with engine() as worker, front([worker]) as gate:
        gate.report(0)
        longest = gate.fleet.models()[0].max_model_len
        assert longest is not None
        known = [(await _route(gate, {"prompt": [1] * size}))["knowledge"] for size in (longest, longest + 1)]
    assert known == ["exact", "load"]


def _answered(gate: Front, path: str, status_class: str, *, model: str = "") -> float:
    return value(gate.metrics, "requests_total", model=model, endpoint=path, status_class=status_class)


async def test_refusals_are_accounted() -> None:
    async with engine() as worker, front([worker]) as gate:
        for path in ("/v1/chat/completions", "/v1/route"):
            await gate.post(path, b"{")
            await gate.post(path, chat("x", model="other"))
            assert _answered(gate, path, "4xx") == 2


async def test_an_unexpected_failure_is_accounted_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(PromptLookup, "complete", broken)
    async with engine() as worker, front([worker]) as gate:
        for path in ("/v1/chat/completions", "/v1/route"):
            status, _, body = await gate.post(path, chat("x"))
            assert (status, error(body)["code"]) == (500, "500")
            assert _answered(gate, path, "5xx", model=MODEL) == 1
            assert _answered(gate, path, "4xx", model=MODEL) == 0


async def test_shared_pools_are_not_salted() -> None:
    async with engine() as worker, front([worker], isolation="Shared") as gate:
        await gate.chat("x", cache_salt="mine")
        assert "cache_salt" not in json.loads(worker.requests[-1].body)


async def test_long_bodies_go_through() -> None:
    bounds = GatewayBounds(body_bytes=8 << 20, body_seconds=5, requests=10)
    async with engine() as worker, front([worker], bounds=bounds) as gate:
        status, _, _ = await gate.chat("x", user="y" * (3 << 20))
        assert status == 200
        assert json.loads(worker.requests[-1].body)["user"] == "y" * (3 << 20)
