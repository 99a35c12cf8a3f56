"""Keys for some models alone, and headers of limits, through a real gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cachefleet_controlplane.pools.source import PoolView
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_core.pool.spec import PrefixCachePool, read_pool
from tests.controlplane.gateway.harness import MODEL, Front, Known, chat, engine, front, pool
from tests.controlplane.gateway.tenancies import ACME, CHAT, KEYS, UMBRELLA, ask, directory, record, salts

KEY = {"authorization": f"Bearer {KEYS[ACME.name]}"}
MESSAGES = "/v1/messages"


def restricted(*models: str) -> Known:
    return Known(directory(ACME, UMBRELLA, keys=[record(ACME, models=models), record(UMBRELLA)]))


async def models(gate: Front, path: str = "/v1/models", **headers: str) -> tuple[int, Any]:
    async with gate.http.get(gate.url + path, headers=KEY | headers) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize("pattern", [MODEL, "*", f"{MODEL[0]}*"])
async def test_a_key_for_a_model_is_served(pattern: str) -> None:
    async with engine() as worker, front([worker], known=restricted("none", pattern)) as gate:
        assert (await ask(gate, ACME))[0] == 200
        assert [one["id"] for one in (await models(gate))[1]["data"]] == [MODEL]
        assert (await models(gate, f"/v1/models/{MODEL}"))[0] == 200


@pytest.mark.parametrize("asked", [MODEL, "unknown"])
async def test_any_other_model_is_as_one_that_does_not_exist(asked: str) -> None:
    async with engine() as worker, front([worker], known=restricted("other-*")) as gate:
        status, _, body = await gate.post(CHAT, chat("hello", model=asked), **KEY)
        error = json.loads(body)["error"]
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert error["message"] == (
            f"The model `{asked}` does not exist, or this API key may not use it. This API key may use: other-*."
        )
        status, _, body = await gate.post("/v1/route", chat("hello", model=asked), **KEY)
        assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
        status, _, body = await gate.post(MESSAGES, chat("hello", model=asked, max_tokens=1), **KEY)
        assert (status, json.loads(body)["error"]["type"]) == (404, "not_found_error")
        assert (await models(gate))[1]["data"] == []
        status, told = await models(gate, f"/v1/models/{asked}")
        assert (status, told["error"]["code"]) == (404, "model_not_found")
        assert not salts(worker), "nothing went to a worker"
        assert (await ask(gate, UMBRELLA))[0] == 200, "whose key is for all models"


async def test_naming_no_model_says_what_the_key_may_use_and_nothing_else() -> None:
    async with engine() as worker, front([worker], known=restricted("other")) as gate:
        body = chat("hello")
        del body["model"]
        status, _, told = await gate.post(CHAT, body, **KEY)
        assert (status, json.loads(told)["error"]["message"]) == (
            400,
            "`model` is required. This API key may use: other.",
        )


def adapted(name: str, **more: Any) -> PrefixCachePool:
    """A pool of a model of that name, with an adapter and aliases as ``more`` says."""
    declared = pool(model=name).model_dump(mode="json", by_alias=True, exclude_none=True)
    declared["metadata"]["name"] = f"pool-{name}"
    declared["spec"]["model"] |= more
    return read_pool(declared)


@asynccontextmanager
async def several(*allowed: str) -> AsyncIterator[Front]:
    """The model of the harness and "next", which share alias "chat"; the first has "gpt" and adapter "sql", too."""
    async with (
        engine() as first,
        engine(model="next") as second,
        front([first, second], known=restricted(*allowed)) as gate,
    ):
        here, adapters = gate.endpoints(), [{"name": "sql", "source": "/weights/sql"}]
        stable = adapted(MODEL, aliases=["chat", "gpt"], aliasWeight=90, adapters=adapters)
        gate.fleet.update_pools(
            [PoolView(stable, here[:1]), PoolView(adapted("next", aliases=["chat"], aliasWeight=10), here[1:], place=1)]
        )
        gate.report(0, said={"endpoints": (CHAT, "/classify"), "pool": f"default/pool-{MODEL}"})
        gate.report(1, said={"endpoints": (CHAT,), "pool": "default/pool-next"})
        yield gate


@pytest.mark.parametrize(
    ("allowed", "ids"),
    [((MODEL,), {MODEL, "chat", "gpt"}), (("next",), {"next", "chat"}), (("gpt",), {"gpt"}), (("sql",), {"sql"})],
)
@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2023-06-01"}], ids=["openai", "anthropic"])
async def test_lists_and_their_objects_name_what_the_key_may_ask_for_and_nothing_else(
    allowed: tuple[str, ...], ids: set[str], headers: dict[str, str]
) -> None:
    async with several(*allowed) as gate:
        unnamed = {MODEL, "next", "sql", "gpt", "chat"} - ids
        for path in ("/v1/models", "/v1/models?client_version=1"):
            status, listed = await models(gate, path, **headers)
            assert (status, {one["id"] for one in listed["data"]}) == (200, ids)
            assert not [name for name in unnamed if f'"{name}"' in json.dumps(listed)]
        for name in ids:
            assert not [
                one for one in unnamed if f'"{one}"' in json.dumps((await models(gate, f"/v1/models/{name}"))[1])
            ]
        for name in unnamed:
            assert (await models(gate, f"/v1/models/{name}", **headers))[0] == 404


async def test_an_alias_is_served_by_those_of_its_models_that_the_key_may_use() -> None:
    async with several("next") as gate:
        for number in range(8):
            assert (await gate.post(CHAT, chat(f"about {number}", model="chat"), **KEY))[0] == 200
        assert {record.model for record in gate.records} == {"next"}


async def test_an_alias_alone_may_be_asked_for_and_its_model_is_not_named() -> None:
    async with several("gpt") as gate:
        status, _, body = await gate.post(CHAT, chat("hello", model="gpt"), **KEY)
        assert (status, json.loads(body)["model"]) == (200, "gpt")
        assert (await gate.post(CHAT, chat("hello", model=MODEL), **KEY))[0] == 404
        status, _, body = await gate.post("/v1/score", {"model": "gpt", "text_1": "a", "text_2": "b"}, **KEY)
        assert (status, MODEL in body.decode()) == (404, False), body


async def test_an_endpoint_that_a_model_lacks_names_no_model_that_the_key_may_not_use() -> None:
    async with several("next") as gate:
        asked = {"model": "next", "input": "hello"}
        status, _, body = await gate.post("/classify", asked, **KEY)
        assert status == 404
        assert json.loads(body)["error"]["message"] == (
            "The model `next` has no /classify. No model that this API key may use has it: a pool of a pooling model "
            "does that was trained for it."
        )
        status, _, body = await gate.post("/classify", asked | {"model": MODEL}, **KEY)
        assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
    async with several("next", MODEL) as gate:
        _, _, body = await gate.post("/classify", asked, **KEY)
        assert json.loads(body)["error"]["message"] == f"The model `next` has no /classify. Ask `{MODEL}`."


LIMITED = TenantRecord(name=ACME.name, requests_per_minute=2, tokens_per_minute=120)


async def test_answers_tell_what_limits_leave() -> None:
    async with engine() as worker, front([worker], known=Known(directory(LIMITED, UMBRELLA))) as gate:
        status, told, body = await ask(gate, ACME)
        assert status == 200
        assert (told["x-ratelimit-limit-requests"], told["x-ratelimit-remaining-requests"]) == ("2", "1")
        assert told["x-ratelimit-reset-requests"] in {"29s", "30s"}
        limit, left, reset = (told[f"x-ratelimit-{name}-tokens"] for name in ("limit", "remaining", "reset"))
        assert (limit, left, reset) == ("120", "120", "0s")
        used = body["usage"]["total_tokens"]
        status, told, _ = await gate.post(MESSAGES, chat("hello there", max_tokens=1), **KEY)
        assert status == 200
        assert told["anthropic-ratelimit-requests-remaining"] == "0"
        assert 120 - used <= int(told["anthropic-ratelimit-tokens-remaining"]) <= 120
        assert told["anthropic-ratelimit-tokens-reset"].endswith("Z")
        assert not [name for name in told if name.startswith("x-ratelimit")]
        status, told, _ = await ask(gate, ACME)
        assert (status, told["x-ratelimit-remaining-requests"]) == (429, "0")
        _, told, _ = await ask(gate, UMBRELLA)
        assert not [name for name in told if "ratelimit" in name], "who has no limits is told of none"
