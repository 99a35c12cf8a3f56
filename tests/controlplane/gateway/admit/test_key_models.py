"""Keys for some models alone, and headers of limits, through a real gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cachefleet_controlplane.store.tenant_records import TenantRecord
from tests.controlplane.gateway.harness import MODEL, Front, Known, chat, engine, front
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
        assert (status, MODEL in json.loads(told)["error"]["message"]) == (404, True), "the only one is meant"


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
