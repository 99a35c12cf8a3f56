"""Prompts of one ``prompt_cache_key`` go to one worker where nothing else tells."""

from __future__ import annotations

import msgspec
import pytest

from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.place.key_affinity import KeyAffinity
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.tenancy import TenantId
from tests.controlplane.gateway.harness import chat, engine, front


async def test_prompts_of_a_key_stay_together_where_all_workers_are_alike() -> None:
    async with engine() as one, engine() as two, engine() as three, front([one, two, three]) as gate:
        for _ in range(6):
            await gate.post("/v1/chat/completions", chat("hi", prompt_cache_key="a"))
        assert len({record.worker for record in gate.records}) == 1
        for number in range(6):
            await gate.post("/v1/chat/completions", chat("hi", prompt_cache_key=f"b{number}"))
        assert len({record.worker for record in gate.records}) == 3


async def test_asking_where_a_prompt_would_go_moves_no_key() -> None:
    async with engine() as one, engine() as two, front([one, two]) as gate:
        await gate.post("/v1/chat/completions", chat("hi", prompt_cache_key="a"))
        for _ in range(3):
            await gate.post("/v1/route", chat("hi", prompt_cache_key="b"))
        assert gate.affinity is not None
        assert len(gate.affinity._workers) == 1


def asked(tenant: str, model: str, key: str) -> Request:
    body = msgspec.json.encode(chat("hi") | ({"prompt_cache_key": key} if key else {}))
    served = ServedModel(
        name=model,
        upstream=model,
        base=model,
        namespace="default",
        pools=(),
        declared=(),
        max_model_len=None,
        created=0,
    )
    return Request(parse(body, Endpoint.CHAT), served, TenantRecord(name=TenantId(tenant)))


@pytest.mark.parametrize("other", [("t2", "m", "k"), ("t", "m2", "k"), ("t", "m", "k2")])
def test_a_key_is_of_its_tenant_and_model(other: tuple[str, str, str]) -> None:
    affinity = KeyAffinity()
    affinity.applied(asked("t", "m", "k")).sent_to("default/demo/demo-0")
    assert affinity.applied(asked("t", "m", "k")).preferred == "default/demo/demo-0"
    assert affinity.applied(asked(*other)).preferred == ""


def test_the_keys_used_least_recently_are_forgotten() -> None:
    affinity = KeyAffinity(limit=2)
    for key in ("a", "b", "a", "c"):
        affinity.applied(asked("t", "m", key)).sent_to(f"worker-{key}")
    preferred = [affinity.applied(asked("t", "m", key)).preferred for key in ("a", "b", "c")]
    assert preferred == ["worker-a", "", "worker-c"]
    affinity.applied(asked("t", "m", "")).sent_to("nowhere")
    assert affinity.applied(asked("t", "m", "")).preferred == ""
