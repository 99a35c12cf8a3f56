"""What rendering rests on: what workers announce changes it, and only those with the fleet's contract give keys."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_controlplane.workers.render_profiles import NO_FACTS
from cachefleet_core.index_contract import RenderProfile
from cachefleet_core.report_frames import Capability
from tests.controlplane.fleets import MODEL, LiveFleet, fleet_of, pool, view
from tests.controlplane.frames import CONTRACT, hello


def announce(fleet: LiveFleet, worker: str, **changes: Any) -> None:
    link = fleet.report(worker)
    fleet.hello(link.connection, hello(worker, **changes))


def keys(mode: str = "render") -> tuple[Capability, ...]:
    return (Capability(feature="keys", mode=mode),)


def test_who_gives_keys() -> None:
    fleet = fleet_of("a", "b", "c", "d")
    announce(fleet, "a", capabilities=keys())
    announce(fleet, "b", capabilities=keys("off"))
    announce(fleet, "c")
    other = CONTRACT.__class__(weights=CONTRACT.weights, tokenizer="sha256:else", block_size=CONTRACT.block_size)
    announce(fleet, "d", capabilities=keys(), contract=other)
    facts = fleet.render_facts(MODEL)
    assert facts.keys_at == {"http://a"}
    assert (facts.contract, facts.block_size) == (CONTRACT.fingerprint(), CONTRACT.block_size)
    assert (facts.model, facts.pool) == (f"default/{MODEL}", "default/demo")


def test_another_profile_or_contract_is_another_renderer() -> None:
    fleet = fleet_of("a", "b")
    seen = [fleet.render_facts(MODEL).renderer]
    for changes in ({}, {"profile": RenderProfile(template="sha256:1")}):
        announce(fleet, "a", **changes)
        seen.append(fleet.render_facts(MODEL).renderer)
    assert len(set(seen)) == 3
    announce(fleet, "b", profile=RenderProfile(template="sha256:1"))
    assert fleet.render_facts(MODEL).renderer == seen[-1]


def test_of_what_is_not_served_nothing_is_known() -> None:
    assert fleet_of("a").render_facts("else") == NO_FACTS


@pytest.mark.parametrize(
    ("arguments", "parses"),
    [
        (["--reasoning-parser", "qwen3"], True),
        (["--reasoning-parser=granite"], True),
        (["--reasoning_parser", "qwen3"], True),
        (["--tool-call-parser", "hermes"], False),
        ([], False),
    ],
)
def test_a_pools_arguments_name_a_parser_of_reasoning(arguments: list[str], *, parses: bool) -> None:
    fleet = LiveFleet()
    fleet.update_pools([view(pool(engine={"image": "vllm", "maxModelLen": 4096, "extraArgs": arguments}), ["a"])])
    assert fleet.render_facts(MODEL).parses_reasoning == parses


def test_who_makes_recorded_streams_again() -> None:
    fleet = fleet_of("a", "b", "c")
    announce(fleet, "a", capabilities=(Capability(feature="answer_replay", mode="on"),))
    announce(fleet, "b")
    facts = fleet.render_facts(MODEL)
    assert facts.replays_at == {"http://a"}
    assert facts.replay_lacking == {"default/demo/b", "default/demo/c"}
