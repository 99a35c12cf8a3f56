from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from cachefleet_core.report_frames import Phase, State
from cachefleet_worker.agent.engines.engine_poll import LoadMetrics
from cachefleet_worker.agent.load_meter import LoadMeter, Rate


def test_a_rate_needs_three_samples() -> None:
    rate = Rate()
    for total in (0, 100, 200):
        rate.add(total, total / 50)
    assert rate.value is None
    rate.add(200, 4.0)
    assert rate.value is None, "an interval in which nothing was done is no sample"
    rate.add(400, 8.0)
    assert rate.value == pytest.approx(50.0)


def test_a_rate_out_of_all_bounds_leaves_the_report_valid() -> None:
    rate = Rate()
    for number in range(5):
        rate.add(1e6 * number, 1e-6 * number)
    state = State(sequence=0, digest=0, held=0, phase=Phase.READY, running=0, waiting=0)
    told = msgspec.structs.replace(state, loaded_tokens_per_second=rate.value)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=State) == told


def test_a_rate_begins_anew_when_sums_fall() -> None:
    rate = Rate()
    for total in range(5):
        rate.add(total, total)
    assert rate.value == 1.0
    rate.add(0, 0)
    assert rate.value is None


@pytest.mark.parametrize(("devices", "rate"), [(1, 20_000.0), (4, 80_000.0)])
def test_devices_load_their_parts_of_a_token_at_once(devices: int, rate: float) -> None:
    meter = LoadMeter(200, devices)
    for n in range(5):
        load = meter.add(LoadMetrics(loaded_tokens=n * 1000.0, loading_seconds=n * 0.05))
        assert load.loaded_tokens_per_second == (None if n < 3 else pytest.approx(rate))
    assert load.prefill_tokens_per_second is None


def test_a_meter_turns_vitals_into_load() -> None:
    meter = LoadMeter(200)
    assert meter.load.blocks_free == 200
    load_metrics = LoadMetrics(running=2, waiting=1, usage=0.25, prefix_queries=50, prefix_hits=20)
    for n in range(5):
        load = meter.add(
            replace(
                load_metrics,
                prefill_tokens=n * 1000.0,
                prefill_seconds=n * 0.5,
                inter_token_sum=n * 0.2,
                inter_token_count=n * 10,
            )
        )
    assert (load.running, load.waiting, load.blocks_total, load.blocks_free) == (2, 1, 200, 150)
    assert load.prefill_tokens_per_second == pytest.approx(2000.0)
    assert load.inter_token_seconds == pytest.approx(0.02)
    assert (load.prefix_queries, load.prefix_hits) == (50, 20)
