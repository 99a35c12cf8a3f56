"""A live pool as a modelled fleet: its engines' rates, and the budget that they are held to."""

from dataclasses import replace
from statistics import median

import msgspec
import pytest

from cachefleet_controlplane.simulation.fleet_model import Changes, FleetModel, fleet_model
from cachefleet_core.report_frames import Capability
from tests.controlplane.fleets import MODEL, fleet_of, pool

BLOCK_BYTES = 1 << 19
RATES = {"demo-0": 1000.0, "demo-1": 3000.0, "demo-2": 2000.0}


def modelled(mode: str = "exact", block_bytes: int = BLOCK_BYTES) -> FleetModel:
    fleet = fleet_of(*RATES)
    for name, rate in RATES.items():
        fleet.report(name, prefill_tokens_per_second=rate, inter_token_seconds=1 / rate)
    held = (Capability(feature="budget", mode=mode),)
    workers = [
        msgspec.structs.replace(worker, block_bytes=block_bytes, capabilities=held) for worker in fleet.view().workers
    ]
    hellos = fleet.announced(f"default/{MODEL}")
    return fleet_model(pool(prefixCache={"budgetMiB": 64}), workers, hellos, policy="cacheAware")


def test_rates_and_budget_are_those_of_the_fleet() -> None:
    model = modelled()
    assert (model.setup.workers, model.budget_mib, model.setup.budget_blocks) == (3, 64, 128)
    assert model.setup.prefill_tokens_per_second == median(RATES.values())
    assert model.setup.inter_token_seconds == pytest.approx(1 / 2000)


@pytest.mark.parametrize(("mode", "block_bytes"), [("off", BLOCK_BYTES), ("exact", 0)])
def test_engines_that_nothing_holds_to_a_budget_keep_all(mode: str, block_bytes: int) -> None:
    model = modelled(mode, block_bytes)
    assert (model.budget_mib, model.setup.budget_blocks) == (None, None)


def test_only_what_is_named_is_changed() -> None:
    model = modelled()
    assert model.changed(Changes()) == model.setup
    assert model.changed(Changes(budget_mib=32)) == replace(model.setup, budget_blocks=64)
    assert model.changed(Changes(workers=5)) == replace(model.setup, workers=5)
