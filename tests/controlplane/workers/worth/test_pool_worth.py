"""What a pool learns of what work and evictions cost others, from reports and from requests sent."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES
from cachefleet_controlplane.routing.worth import UNLEARNT
from cachefleet_controlplane.workers.worth.asked_blocks import DOUBT, MAX_BLOCKS, MEMORY, SAMPLE, AskedBlocks
from cachefleet_controlplane.workers.worth.paid_waiting import HALF_LIFE_SECONDS, MAX_PREFIXES, PaidWaiting
from cachefleet_controlplane.workers.worth.pool_worth import REFRESH_SECONDS, REQUESTS_NEEDED, SECONDS_NEEDED, PoolWorth
from cachefleet_core.block_keys import pack_keys
from tests.controlplane.chains import chain


def fed(worth: PoolWorth, *, seconds: int, workers: int = 4, tokens: int = 1000, uncached: int = 250) -> PoolWorth:
    """Each worker has one request a second, which is reported as soon as it is sent."""
    for now in range(seconds):
        for _ in range(workers):
            worth.sent(tokens, uncached)
            worth.reported(tokens, tokens - uncached, now)
    return worth


# Load.


def test_a_pool_that_was_not_watched_for_long_says_nothing() -> None:
    assert PoolWorth().worth(4) == UNLEARNT
    assert fed(PoolWorth(), seconds=int(SECONDS_NEEDED) - 5).worth(4) == UNLEARNT
    assert fed(PoolWorth(), seconds=300).worth(0) == UNLEARNT
    few = PoolWorth()
    for now in range(300):
        few.reported(1000, 100, now)
    assert few.worth(4) == UNLEARNT, REQUESTS_NEEDED


@pytest.mark.parametrize("seconds", [80, 400, 4000])
def test_rates_are_those_of_one_worker(seconds: int) -> None:
    worth = fed(PoolWorth(), seconds=seconds).worth(4)
    assert worth.requests_per_second == pytest.approx(1.0, rel=0.03)
    assert worth.computed_per_second == pytest.approx(250, rel=0.03)
    assert worth.request_tokens == pytest.approx(250)


def test_other_replicas_requests_count_too() -> None:
    worth = PoolWorth()
    for now in range(300):
        worth.sent(1000, 250)
        for _ in range(3):
            worth.reported(1000, 750, now)
    assert worth.worth(1).requests_per_second == pytest.approx(3.0, rel=0.03)


def test_large_requests_weigh_by_their_size() -> None:
    worth = PoolWorth()
    for now in range(300):
        worth.sent(4000, 1000 if now % 10 == 0 else 0)
        worth.reported(4000, 3000, now)
    assert worth.worth(1).request_tokens == pytest.approx(1000)


def test_what_was_long_ago_is_forgotten() -> None:
    worth = fed(PoolWorth(), seconds=600)
    worth.reported(0, 0, 600 + 3000.0)
    assert worth.worth(4).requests_per_second < 0.01


def test_an_engine_that_does_not_say_what_it_looks_up_shows_nothing() -> None:
    worth = PoolWorth()
    for now in range(300):
        worth.sent(1000, 250)
        worth.reported(0, 0, now)
        worth.blocks.ask(pack_keys(chain(now, 640)), held=0, found=0, evicting=True, room=100_000)
    assert worth.blocks.worth < 0.1
    assert worth.worth(4) == UNLEARNT


def test_it_tells_now_and_then() -> None:
    worth = fed(PoolWorth(), seconds=100)
    assert worth.due(100)
    worth.tell(4, 100)
    assert not worth.due(100 + REFRESH_SECONDS - 0.1)
    assert worth.due(100 + REFRESH_SECONDS)


@given(st.lists(st.tuples(st.floats(-10, 100), st.integers(0, 10**9), st.integers(0, 10**9)), max_size=30))
def test_no_report_makes_it_absurd(reports: list[tuple[float, int, int]]) -> None:
    pool, now = PoolWorth(), 0.0
    for step, queries, hits in reports:
        now += step
        pool.reported(queries, hits, now)
        pool.sent(queries, hits)
    worth = pool.worth(3)
    assert 0 <= worth.eviction <= 1
    assert min(worth.requests_per_second, worth.computed_per_second, worth.request_tokens) >= 0


# Evictions.


def ask(blocks: AskedBlocks, seed: int, *, found: int = 0, evicting: bool = True, room: int = 100_000) -> None:
    keys = pack_keys(chain(seed, 640))
    blocks.ask(keys, held=found, found=found, evicting=evicting, room=room)


def test_nothing_known_is_that_all_of_it_comes_back() -> None:
    assert AskedBlocks().worth == 1


def test_what_is_never_asked_for_again_is_worth_nothing() -> None:
    blocks = AskedBlocks()
    for seed in range(300):
        ask(blocks, seed)
    assert blocks.worth < 0.03


def test_the_share_that_comes_back_is_what_it_is_worth() -> None:
    """Half of the prompts are asked again later, when no worker holds them any more."""
    blocks, chance = AskedBlocks(), random.Random(1)
    for seed in range(600):
        ask(blocks, seed)
        if seed >= 20 and chance.random() < 0.5:
            ask(blocks, seed - 20)
    assert blocks.worth == pytest.approx(1 / 3, abs=0.05)


def test_what_is_still_held_was_not_evicted() -> None:
    blocks = AskedBlocks()
    for seed in range(300):
        ask(blocks, seed)
        ask(blocks, seed, found=640)
    assert blocks.worth < 0.03


def test_blocks_that_another_worker_holds_were_not_evicted() -> None:
    blocks, keys = AskedBlocks(), pack_keys(chain(1, 6400))
    blocks.ask(keys, held=0, found=0, evicting=False, room=100_000)
    blocks.ask(keys, held=0, found=6400, evicting=True, room=100_000)
    copied = blocks.worth
    assert copied < 1
    blocks.ask(keys, held=0, found=0, evicting=True, room=100_000)
    assert blocks.worth > copied


def test_what_comes_back_after_another_cache_of_the_size_would_have_lost_it_too() -> None:
    blocks = AskedBlocks()
    for seed in range(200):
        ask(blocks, seed % 100, room=640 * 20)
    assert len(blocks) == 2 * 640 * 20 // SAMPLE + 1
    assert blocks.worth < 0.03


def test_where_nothing_is_evicted_nothing_is_learnt() -> None:
    blocks = AskedBlocks()
    for seed in range(100):
        ask(blocks, seed, evicting=False)
    assert blocks.worth == 1
    assert len(blocks) > DOUBT


def test_it_learns_anew_where_work_changes() -> None:
    blocks = AskedBlocks()
    for seed in [*range(2 * MEMORY // 10), *range(2 * MEMORY // 10)]:
        ask(blocks, seed, room=400_000)
    assert blocks.worth > 0.3


@pytest.mark.parametrize("room", [1000, 100_000, 10_000_000])
def test_it_is_bounded(room: int) -> None:
    blocks = AskedBlocks()
    for seed in range(400):
        ask(blocks, seed, room=room)
    assert len(blocks) <= MAX_BLOCKS
    assert all(len(key) == KEY_BYTES for key in blocks._asked)


# Waiting.


def test_waiting_adds_up_and_fades() -> None:
    paid = PaidWaiting()
    paid.add(b"a", 2.0, 0.0)
    paid.add(b"a", 1.0, HALF_LIFE_SECONDS)
    assert paid.of(b"a", HALF_LIFE_SECONDS) == pytest.approx(2.0)
    assert paid.of(b"a", 2 * HALF_LIFE_SECONDS) == pytest.approx(1.0)
    assert paid.of(b"b", 0.0) == 0
    paid.spend(b"a")
    assert paid.of(b"a", HALF_LIFE_SECONDS) == 0


def test_waiting_is_kept_of_the_latest_prefixes() -> None:
    paid = PaidWaiting()
    for number in range(2 * MAX_PREFIXES):
        paid.add(b"hot", 0.1, 0.0)
        paid.add(b"%d" % number, 1.0, 0.0)
    assert len(paid) == MAX_PREFIXES
    assert paid.of(b"hot", 0.0) > 1
