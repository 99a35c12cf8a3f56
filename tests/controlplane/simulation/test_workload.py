"""Requests to simulate: of records, with what their answers filled, and of a trace; and the records themselves."""

import io

import pytest

from cachefleet_controlplane.history.recorded_requests import OVERHEAD, RecordedRequest, RecordedRequests
from cachefleet_controlplane.simulation.job_stream import RECORDS, pieces, read_job
from cachefleet_controlplane.simulation.simulation_job import Job, happened, percentile
from cachefleet_controlplane.simulation.workload import TraceLine, from_records, from_trace
from cachefleet_core.block_keys import pack_keys

POOL = "default/demo"


def recorded(
    keys: list[int], *, at: float = 0.0, pool: str = POOL, cached: int = 0, more: int = 3, out: int = 20
) -> RecordedRequest:
    return RecordedRequest(at, pool, pack_keys(keys), 16 * len(keys) + more, cached, out, 0.5, 0.25)


# Records.


def test_the_oldest_go_first_and_the_bound_holds() -> None:
    kept = RecordedRequests(3 * (OVERHEAD + 16))
    for number in range(10):
        kept.add(recorded([number + 1, number + 100], at=number))
        assert kept.bytes <= 3 * (OVERHEAD + 16)
    assert [one.at for one in kept.latest(POOL, 9)] == [7, 8, 9]
    assert [one.at for one in kept.latest(POOL, 2)] == [8, 9]
    assert not kept.latest("default/other", 9)


@pytest.mark.parametrize("most", [0, 100])
def test_what_is_larger_than_the_bound_is_not_kept(most: int) -> None:
    kept = RecordedRequests(most)
    kept.add(recorded([1]))
    assert (len(kept), kept.bytes, kept.on) == (0, 0, most > 0)


def test_what_happened() -> None:
    told = happened([recorded([1, 2], cached=16), recorded([1, 2], cached=0)])
    assert (told.prompt_tokens, told.recomputed_tokens) == (70, 54)
    assert told.hit_ratio == pytest.approx(16 / 70)
    assert (told.queue_p99_seconds, told.ttft_p50_seconds) == (0.25, 0.5)
    assert happened([]).hit_ratio is None


@pytest.mark.parametrize(("share", "value"), [(1, 1), (50, 2), (51, 3), (99, 4), (75, 3)])
def test_percentiles_are_of_the_values(share: int, value: int) -> None:
    assert percentile([4, 2, 1, 3], share) == value


@pytest.mark.parametrize("count", [0, 1, RECORDS, 2 * RECORDS + 1])
def test_a_job_arrives_as_it_was(count: int) -> None:
    job = Job(pool={"a": 1}, contract={}, records=tuple(recorded([n + 1], at=n) for n in range(count)), scenarios=())
    sent = list(pieces(job))
    assert read_job(io.BytesIO(b"".join(sent))) == job
    assert len(sent) == 1 + -(-count // RECORDS)


# Workloads.


def test_an_answer_that_a_later_prompt_was_served_from_is_known() -> None:
    first = recorded([1, 2], at=5.0, out=40)  # 35 tokens, 75 with its answer: blocks 3 and 4 are filled by that
    second = recorded([1, 2, 3, 4, 5, 6], at=9.0, cached=64)
    one, two = from_records([second, first], 16)
    assert (one.at, two.at) == (0.0, 4.0)
    assert one.answer == (3, 4)
    assert one.all_keys(16) == [1, 2, 3, 4]
    assert two.answer == ()
    assert len(two.all_keys(16)) == (6 * 16 + 3 + 20) // 16


def test_an_answer_that_nobody_was_served_from_is_its_own() -> None:
    first, second = recorded([1, 2], out=40), recorded([1, 2, 3, 4], at=1.0, cached=32)
    one, two = from_records([first, second], 16)
    assert one.answer == ()
    assert len(one.all_keys(16)) == 4
    assert not set(one.all_keys(16)[2:]) & {*two.all_keys(16)}


def test_a_block_of_a_trace_becomes_several_with_a_prefix_in_common() -> None:
    lines = [
        TraceLine(timestamp=2000, input_length=130, output_length=5, hash_ids=(7, 8, 9)),
        TraceLine(timestamp=1000, input_length=100, output_length=0, hash_ids=(7, 6)),
        TraceLine(timestamp=1000, input_length=64, output_length=1, hash_ids=(6,)),
    ]
    one, two, three = from_trace(lines, block_size=16, trace_block=64)
    assert (one.at, two.at, three.at, one.outputs) == (0.0, 0.0, 1.0, 1)
    assert (len(one.keys), len(two.keys), len(three.keys)) == (6, 4, 8)
    assert one.keys[:4] == three.keys[:4]
    assert len({*one.keys, *two.keys, *three.keys}) == 6 + 4 + 4  # the same block after others is another


def test_keys_are_made_of_what_an_engine_takes_alone() -> None:
    """However many blocks a line names, and however large these are said to be."""
    named = TraceLine(timestamp=0, input_length=64, output_length=1, hash_ids=tuple(range(50_000)))
    long = TraceLine(timestamp=1, input_length=2**24, output_length=1, hash_ids=tuple(range(50_000)))
    short, refused = from_trace((named, long), block_size=16, trace_block=65_536, longest=4096)
    assert (len(short.keys), refused.keys) == (4, ())
