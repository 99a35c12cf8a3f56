"""Bounds of ``FleetLoad``, each by its name."""

from dataclasses import replace

import cachefleet_native
import pytest
from cachefleet_native import FleetLoad

from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_core.block_keys import pack_keys

SETUP = Setup(workers=2, blocks=100)
ANSWERED = (1.0, 33, 4, 0, pack_keys([1, 2]), b"")


def load(*requests: tuple[float, int, int, int, bytes, bytes]) -> FleetLoad:
    found = FleetLoad(16)
    assert found.add(requests or [ANSWERED])
    return found


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"workers": 0}, "workers must be from 1 to 1024, got 0"),
        ({"blocks": 1 << 25}, "blocks must be from 1 to"),
        ({"prefill_tokens_per_second": float("nan")}, "prefill_tokens_per_second must be from"),
        ({"inter_token_seconds": -1.0}, "inter_token_seconds must be from 0"),
        ({"batched_tokens": 0}, "batched_tokens must be from 1"),
        ({"running": 0}, "running must be from 1"),
    ],
)
def test_a_fleet_out_of_bounds_is_refused(changes: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        load().play(replace(SETUP, **changes), seconds=1.0)  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize("bad", [{"free_percent": 101}, {"eviction": 1.5}, {"seconds": 1000.0}])
def test_how_it_is_played_has_bounds(bad: dict[str, float]) -> None:
    given = {"seconds": 1.0, **bad}
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must be from"):
        load().play(SETUP, **given)  # type: ignore[arg-type]  # what is refused


def test_requests_out_of_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="block_size must be from 1"):
        FleetLoad(0)
    with pytest.raises(ValueError, match="at must be a number of seconds"):
        load((float("inf"), *ANSWERED[1:]))
    with pytest.raises(ValueError, match="requests must be from 0 to 256"):
        FleetLoad(16).add([ANSWERED] * 257)
    with pytest.raises(cachefleet_native.OperationError, match="multiple of 8"):
        load((1.0, 33, 4, 0, b"1234567", b""))


def test_what_was_played_takes_no_more_requests() -> None:
    played = load()
    assert played.play(SETUP, seconds=1.0) == (33, 0, 0)
    with pytest.raises(ValueError, match="before they are played"):
        played.add([ANSWERED])
    assert (len(played), played.play(SETUP, seconds=1.0)) == (1, (33, 0, 0))


def test_it_is_full_at_a_bound() -> None:
    huge = (1.0, 1, 16 * (1 << 20), 0, b"", b"")
    assert load(huge).add([ANSWERED])
    assert not load(huge, huge).add([ANSWERED])


def test_it_ends_where_it_lasts_too_long() -> None:
    long = load(*[(float(at), 900, 1, 0, pack_keys(range(1 + at, 51 + at)), b"") for at in range(256)])
    assert long.play(SETUP, seconds=0.0) is None
    assert long.play(SETUP, seconds=60.0) is not None
