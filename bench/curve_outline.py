"""A fleet in outline, for the hit curve's benchmark: native code plays requests through it in a hundredth of a second.

See ``native/src/outline``: engines are as simulations have them, and workers are chosen by the formulas of decisions,
which know at once what is held where; no reports, frames or index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cachefleet_native import FleetLoad

from bench.replay_work import BLOCK
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.workload import SimulatedRequest
from cachefleet_core.block_keys import pack_keys

AT_ONCE: Final = 256
"""Requests of one call."""
SECONDS: Final = 60.0
"""It may last so long."""


def load_of(requests: Sequence[SimulatedRequest]) -> FleetLoad:
    """What is played. ValueError where there is no room for all."""
    load = FleetLoad(BLOCK)
    for begin in range(0, len(requests), AT_ONCE):
        some = requests[begin : begin + AT_ONCE]
        told = [(one.at, one.tokens, one.outputs, 0, one.packed, pack_keys(one.answer)) for one in some]
        if not load.add(told):
            raise ValueError("these are too many requests for an outline")
    return load


def outlined(load: FleetLoad, setup: Setup) -> float:
    """The hit ratio, of the tokens of all prompts that have room. TimeoutError."""
    played = load.play(setup, seconds=SECONDS)
    if played is None:
        raise TimeoutError(f"an outline took more than {SECONDS:g} s")
    prompt_tokens, hit_tokens, _ = played
    return hit_tokens / prompt_tokens if prompt_tokens else 0.0
