"""Prompts of one ``prompt_cache_key`` go to one worker where nothing else tells."""

from __future__ import annotations

import pytest

from cachefleet_controlplane.gateway.placement.key_affinity import KeyAffinity
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
        affinity = gate.gateway._input_builder._affinity
        assert len(affinity._workers) == 1


@pytest.mark.parametrize("other", [("t2", "m", "k"), ("t", "m2", "k"), ("t", "m", "k2")])
def test_a_key_is_of_its_tenant_and_model(other: tuple[str, str, str]) -> None:
    affinity = KeyAffinity()
    _, sent_to = affinity.of("t", "m", "k")
    sent_to("default/demo/demo-0")
    assert affinity.of("t", "m", "k")[0] == "default/demo/demo-0"
    assert affinity.of(*other)[0] == ""


def test_the_keys_used_least_recently_are_forgotten() -> None:
    affinity = KeyAffinity(limit=2)
    for key in ("a", "b", "a", "c"):
        affinity.of("t", "m", key)[1](f"worker-{key}")
    assert [affinity.of("t", "m", key)[0] for key in ("a", "b", "c")] == ["worker-a", "", "worker-c"]
    affinity.of("t", "m", "")[1]("nowhere")
    assert affinity.of("t", "m", "")[0] == ""
