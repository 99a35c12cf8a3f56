"""How many blocks a worker may claim."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.pools.block_bounds import BELOW_FACTOR, SLACK, UNKNOWN, excess, most_blocks
from cachefleet_core.pool.spec import PoolSpec
from tests.controlplane.fleets import pool

KV_MIB = 8192 - 10 - 100 - 100
MODEL = {"name": "tiny", "source": "tiny", "weightsMiB": 10}
ENGINE = {"image": "vllm", "blockSize": 16, "maxModelLen": 4096}


def spec(model: dict[str, Any] | None = None, engine: dict[str, Any] | None = None) -> PoolSpec:
    return pool(model=MODEL | (model or {}), engine=ENGINE | (engine or {})).spec


def test_what_it_announces_bounds_what_it_claims() -> None:
    assert most_blocks(spec(), 100) == 100


def test_its_word_is_bounded_by_the_memory_that_the_pool_declares() -> None:
    fits = KV_MIB * 2**20 // (16 * 1024)
    assert most_blocks(spec({"kvBytesPerToken": 1024}), 2**60) == SLACK * fits
    assert most_blocks(spec({"kvBytesPerToken": 1024}), 0) == SLACK * fits
    assert most_blocks(spec(), 2**60) == KV_MIB * 2**20 // (16 * 256)


def test_where_layers_are_of_several_groups_an_engine_has_many_times_as_many_blocks() -> None:
    """A block takes the bytes of one group's layers: 24 of 62, say, of Gemma 3 27B on an 80 GB device."""
    model = {"name": "gemma", "source": "gemma", "weightsMiB": 52_000, "kvBytesPerToken": 62 * 16 * (128 + 128) * 2}
    gemma = pool(model=model, engine=ENGINE, device={"memoryMiB": 81_920}).spec
    for announced in (74_116, 100_000):
        assert most_blocks(gemma, announced) == announced


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_so_it_does_where_the_bytes_of_a_token_are_those_on_all_devices(devices: int) -> None:
    honest = KV_MIB * 2**20 // (16 * 1024)
    assert most_blocks(spec({"kvBytesPerToken": devices * 1024}), honest) == honest


def test_a_pool_without_room_bounds_nothing() -> None:
    full = spec({"weightsMiB": 100_000})
    assert (most_blocks(full, 100), most_blocks(full, 0)) == (100, UNKNOWN)


def test_blocks_below_the_device_are_bounded_on_their_own() -> None:
    most = BELOW_FACTOR * 100
    assert excess(100, most, 100) == ""
    assert excess(101, 0, 100) == "it claims 101 blocks and can hold 100"
    assert excess(0, most + 1, 100) == f"it claims {most + 1} blocks below the device and can hold {most}"


@given(announced=st.integers(0, 2**63), more=st.integers(0, 2**63))
def test_who_announces_more_may_never_claim_less(announced: int, more: int) -> None:
    if announced:
        assert most_blocks(spec(), announced) <= most_blocks(spec(), announced + more) <= most_blocks(spec(), 0)
