"""What one tenant has cached tells another nothing, whichever way decisions know of prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.target import CHAT, Target, attacked
from tests.controlplane.gateway.harness import MODEL, engine
from tests.controlplane.waiting import until

SECRET = "the quarterly numbers are these, and nobody is to know of them. " * 8


def _cached(body: bytes) -> int:
    details = json.loads(body)["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def _told(headers: Mapping[str, str]) -> dict[str, str]:
    """What the gateway itself says of a decision."""
    given = {name: value for name, value in headers.items() if name.startswith("x-cachefleet")}
    return given | {"x-cachefleet-decision": ""}


@pytest.mark.parametrize("knowledge", ["exact", "approximate", "load"])
async def test_a_prompt_that_another_tenant_has_cached_is_as_new(tmp_path: Path, knowledge: str) -> None:
    async with attacked(tmp_path, knowledge=knowledge) as target:
        victim, prober = await target.tenant("victim"), await target.tenant("prober")
        for _ in range(2):
            status, _, own = await target.chat(SECRET, key=victim)
            assert status == 200
        assert _cached(own) > 0  # the attack would see something, if there were anything to see
        status, headers, told = await target.chat(SECRET, key=prober)
        _, unknown, _ = await target.chat(SECRET[::-1], key=prober)
        assert (status, _cached(told)) == (200, 0)
        assert _told(headers) == _told(unknown)
        decisions = (await target.admin("GET", "/decisions"))[1]["items"]
        assert {one["predictedTokens"] for one in decisions if one["tenant"] == "prober"} <= {0}


async def test_a_dry_run_tells_a_tenant_nothing_of_anothers_cache(target: Target) -> None:
    victim, prober = await target.tenant("victim"), await target.tenant("prober")
    assert (await target.chat(SECRET, key=victim))[0] == 200
    answers = []
    for text in (SECRET, SECRET[::-1]):
        body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 2}
        bearer = f"Bearer {prober}"
        status, _, told = await target.post(target.plane.gateway + "/v1/route", body, authorization=bearer)
        assert status == 200
        assert target.worker.url.encode() not in told
        answers.append(json.loads(told) | {"id": ""})
    assert answers[0] == answers[1]


async def test_what_is_hot_for_one_is_not_for_another(tmp_path: Path) -> None:
    async with engine() as worker, attacked(tmp_path, worker=worker) as target:
        victim, prober = await target.tenant("victim"), await target.tenant("prober")
        for number in range(6):
            assert (await target.chat(f"{SECRET} {number}", key=victim))[0] == 200
        _, _, told = await target.chat(f"{SECRET} 7", key=prober)
        assert _cached(told) == 0
        await until(lambda: not worker.worker.scheduler.running)
        salts = {json.loads(seen.body)["cache_salt"] for seen in worker.requests if seen.path == CHAT}
        assert len(salts) == 2
