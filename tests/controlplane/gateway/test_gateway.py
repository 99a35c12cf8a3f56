"""The gateway's promises, over real sockets, in front of fake engines."""

import json

import pytest

from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_core.tenancy import DEFAULT_TENANT
from tests.controlplane.gateway.harness import MODEL, SALT, Known, chat, engine, front
from tests.controlplane.gateway.tenancies import CHAT, directory

LONG = "the same long beginning of every prompt " * 12


async def test_an_answer_comes_through_with_its_decision() -> None:
    async with engine() as worker, front([worker]) as gate:
        status, headers, body = await gate.chat("hello")
    answer = json.loads(body)
    assert status == 200
    assert answer["choices"][0]["finish_reason"] == "length"
    assert headers["x-cachefleet-decision"] == "d1"
    assert headers["x-cachefleet-worker"] == "demo-0"
    assert headers["x-cachefleet-knowledge"] == "load"
    record = gate.records[0]
    assert (record.id, record.status, record.model, record.worker) == ("d1", 200, MODEL, "demo-0")
    assert record.completion_tokens == 4
    assert [attempt.outcome for attempt in record.attempts] == ["answered"]


async def test_a_known_prefix_decides_and_the_prediction_meets_what_was_served() -> None:
    async with engine() as one, engine() as two, front([one, two]) as gate:
        for number in (0, 1):
            gate.report(number)
        _, first, _ = await gate.chat(LONG + "first")
        holder = int(first["x-cachefleet-worker"][-1])
        for number in (0, 1):
            gate.report(number)
        for turn in ("second", "third", "fourth"):
            _, headers, _ = await gate.chat(LONG + turn)
            assert headers["x-cachefleet-worker"] == gate.name(holder)
            assert headers["x-cachefleet-knowledge"] == "exact"
    last = gate.records[-1]
    assert last.predicted_tokens > 0
    assert last.cached_tokens is not None
    assert last.cached_tokens >= last.predicted_tokens


async def test_the_worker_gets_the_salt_and_its_key_but_nothing_private_of_the_client() -> None:
    async with engine() as worker, front([worker]) as gate:
        body = {"cache_salt": "mine", "kv_transfer_params": {"x": 1}, "vllm_xargs": {"kv_cache_report_mode": "full"}}
        await gate.post(
            "/v1/chat/completions",
            {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1} | body,
            authorization="Bearer sk-client",
            x_data_parallel_rank="3",
            cookie="a=b",
        )
        seen = worker.requests[-1]
    sent, headers = json.loads(seen.body), {name.lower(): value for name, value in seen.headers.items()}
    assert sent["cache_salt"] == SALT
    assert "kv_transfer_params" not in sent
    assert sent["vllm_xargs"] == {"cachefleet_resumable": 1}
    assert headers["authorization"] == f"Bearer {worker.options.api_key}"
    assert not {"x-data-parallel-rank", "cookie"} & headers.keys()


@pytest.mark.parametrize("trusted", [False, True])
async def test_only_a_trusted_tenant_tells_an_engine_priorities_ids_and_sessions(*, trusted: bool) -> None:
    own = TenantRecord(name=DEFAULT_TENANT, trusted=trusted)
    members = {"priority": 0, "request_id": "r", "session_id": "s"}
    told = {
        "x-request-id": "abc",
        "x-vllm-priority": "-9",
        "x-session-id": "s",
        "x-real-ip": "::1",
        "x-forwarded-for": "::1",
        "x-forwarded-proto": "https",
        "forwarded": "for=x",
    }
    async with engine() as worker, front([worker], known=Known(directory(own, keys=()))) as gate:
        headers = {name.replace("-", "_"): value for name, value in told.items()}
        status, _, _ = await gate.post(CHAT, chat("x", max_tokens=1) | members, **headers, x_own="kept")
        assert status == 200
        seen = next(asked for asked in worker.requests if asked.path == CHAT)
    sent, heard = json.loads(seen.body), {name.lower(): value for name, value in seen.headers.items()}
    assert heard["x-own"] == "kept"
    assert members.keys() & sent.keys() == (members.keys() if trusted else set())
    assert told.keys() & heard.keys() == (told.keys() if trusted else set())
    assert gate.records[-1].request_id == "abc", "kept for searches, whoever sent it"


async def test_connections_to_workers_are_kept() -> None:
    async with engine() as worker, front([worker]) as gate:
        for number in range(6):
            await gate.chat("x", stream=bool(number % 2))
        assert worker._runner is not None
        assert worker._runner.server is not None
        assert len(worker._runner.server.connections) == 1
