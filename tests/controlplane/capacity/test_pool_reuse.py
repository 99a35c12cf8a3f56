"""Reuse distances against caches that are simulated block by block, and their bounds."""

import random
from collections import OrderedDict
from collections.abc import Sequence

import pytest
from cachefleet_native import ReuseDistances
from hypothesis import given, settings
from hypothesis import strategies as st

from cachefleet_controlplane.capacity.pool_reuse import (
    MAX_POOLS,
    MAX_TENANTS,
    PoolReuse,
    PoolReuses,
    ReusedPrompt,
    Window,
)
from cachefleet_core.block_keys import pack_keys
from cachefleet_core.tenancy import TenantId

BLOCK = 16
SIZES = [2.0**power for power in range(1, 9)]
"""Ends of the histogram's buckets, so that nothing is interpolated."""
TENANT = TenantId("default")


def prompt(keys: Sequence[int], *, answer: int = 0, served: int = 0, tenant: TenantId = TENANT) -> ReusedPrompt:
    """A prompt of full blocks and one more token, and an answer that fills some."""
    tokens = BLOCK * len(keys) + 1
    return ReusedPrompt(
        keys=pack_keys(keys),
        block_size=BLOCK,
        prompt_tokens=tokens,
        completion_tokens=BLOCK * answer,
        servable_blocks=len(keys),
        served_tokens=BLOCK * served,
        tenant=tenant,
    )


class PrefixCache:
    """A cache that serves the longest cached prefix, and evicts what was used longest ago, tails before heads."""

    def __init__(self, blocks: float) -> None:
        self._blocks = blocks
        self._held: OrderedDict[int, None] = OrderedDict()

    def serve(self, keys: Sequence[int], answer: Sequence[int] = ()) -> int:
        hits = next((place for place, key in enumerate(keys) if key not in self._held), len(keys))
        for key in reversed([*keys, *answer]):
            self._held[key] = None
            self._held.move_to_end(key)
        while len(self._held) > self._blocks:
            self._held.popitem(last=False)
        return hits


def chain(conversation: int, blocks: int, *, shared: int = 0) -> list[int]:
    """Keys of a conversation's first blocks, of which some are everybody's."""
    own = (conversation + 1) << 32
    return [1 + block if block < shared else own | block for block in range(blocks)]


@settings(max_examples=60, deadline=None)
@given(
    asked=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), min_size=1, max_size=40),
    shared=st.integers(0, 20),
)
def test_every_size_serves_what_a_simulated_cache_of_it_serves(asked: list[tuple[int, int]], shared: int) -> None:
    reuse, caches = PoolReuse(), [PrefixCache(size) for size in SIZES]
    hits = [0] * len(SIZES)
    for conversation, length in asked:
        keys = chain(conversation, length, shared=shared)
        for place, cache in enumerate(caches):
            hits[place] += cache.serve(keys)
        reuse.note(prompt(keys), 0.0)
    told = reuse.curve(Window.RECENT, SIZES, 0.0)
    assert [share * told.servable_tokens / BLOCK for share in told.shares] == pytest.approx(hits)


@settings(max_examples=60, deadline=None)
@given(asked=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), min_size=1, max_size=40))
def test_answers_take_room_before_what_was_asked_for_earlier(asked: list[tuple[int, int]]) -> None:
    reuse, caches, answers = PoolReuse(), [PrefixCache(size) for size in SIZES], dict[int, int]()
    hits = [0] * len(SIZES)
    for conversation, answer in asked:
        keys = chain(conversation, 12 + conversation, shared=8)
        length = answers.setdefault(conversation, answer)
        own = [(conversation + 100) << 40 | block for block in range(length)]
        for place, cache in enumerate(caches):
            hits[place] += cache.serve(keys, own)
        reuse.note(prompt(keys, answer=len(own)), 0.0)
    told = reuse.curve(Window.RECENT, SIZES, 0.0)
    found = [share * told.servable_tokens / BLOCK for share in told.shares]
    # The few blocks of an answer count as one in the stack, those of prompts each for itself: nothing is off.
    assert found == pytest.approx(hits)


@pytest.mark.parametrize(
    "shared", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow), 40]
)
def test_a_sample_of_few_blocks_is_near_all_blocks(shared: int) -> None:
    """However many of them all prompts have, which the sample holds or not by chance."""
    chance, reuse, exact = random.Random(shared), PoolReuse(), PoolReuse(entries=1 << 20)
    reuse.fit(60_000.0)
    lengths = dict.fromkeys(range(4000), 60)
    for _ in range(12_000):
        conversation = min(chance.randrange(4000), chance.randrange(4000))
        lengths[conversation] = 60 + (lengths[conversation] + chance.randrange(3, 9)) % 120
        one = prompt(chain(conversation, lengths[conversation], shared=shared))
        reuse.note(one, 0.0)
        exact.note(one, 0.0)
    assert (reuse.sampled, exact.sampled) == (0.125, 1.0)
    sizes = [2.0**power for power in range(13, 19)]
    shares, true = (each.curve(Window.RECENT, sizes, 0.0).shares for each in (reuse, exact))
    assert shares == pytest.approx(true, abs=0.02), (shares, true)
    assert true[-1] - true[0] > 0.2


def test_memory_is_bounded_whatever_is_asked_for() -> None:
    distances = ReuseDistances(256, [60.0], 1)
    for number in range(2000):
        distances.note(pack_keys(chain(number, 30)), 30, 4, 16.0, 481.0, 0.0, 0.0, 0, 0.0)
    assert distances.size()[0] == 256
    reuses = PoolReuses()
    for number in range(MAX_POOLS + 3):
        reuses.note(f"default/{number}", prompt(chain(1, 4)), 0.0)
    assert reuses.of("default/2") is None
    assert reuses.of(f"default/{MAX_POOLS + 2}") is not None


def test_tenants_have_their_own_curves_and_the_one_unheard_of_longest_makes_room() -> None:
    reuse, first, second = PoolReuse(), TenantId("first"), TenantId("second")
    for _ in range(2):
        reuse.note(prompt(chain(1, 10), tenant=first), 0.0)
    reuse.note(prompt(chain(2, 10), tenant=second), 0.0)
    assert reuse.tenant_curve(first, [64.0], 0.0).shares == [0.5]
    assert reuse.tenant_curve(second, [64.0], 0.0).shares == [0.0]
    for number in range(MAX_TENANTS - 1):
        reuse.note(prompt(chain(3, 10), tenant=TenantId(f"t{number}")), 0.0)
    assert first not in reuse.tenants
    assert reuse.tenant_curve(TenantId(f"t{MAX_TENANTS - 2}"), [64.0], 0.0).requests == 1


def test_an_hour_counts_half() -> None:
    reuse = PoolReuse()
    for now in (0.0, 3600.0):
        reuse.note(prompt(chain(1, 10), served=5), now)
    told = reuse.curve(Window.RECENT, [64.0], 3600.0)
    assert told.requests == 1.5
    assert told.shares == pytest.approx([10 / 15])
    assert reuse.curve(Window.DAY, [64.0], 3600.0).requests == pytest.approx(1 + 0.5 ** (1 / 24))
    assert told.served_ratio == pytest.approx(80 / 161)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((0, [1.0], 1), "entries"),
        ((1, [], 1), "half_lives"),
        ((1, [-1.0], 1), "half_lives"),
        ((1, [1.0], 999), "tenants"),
    ],
)
def test_bounds_are_told(arguments: tuple[int, list[float], int], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        ReuseDistances(*arguments)
