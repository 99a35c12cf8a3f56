"""The choice of chains to evict: pure, without vLLM."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from cachefleet_worker.plugin.budget.chain import Chain
from cachefleet_worker.plugin.budget.chain_eviction import ChainOrder
from cachefleet_worker.plugin.live_policy import Shares


def order(limit: int | None) -> ChainOrder:
    chains = ChainOrder()
    chains.resize(limit)
    return chains


def run(chains: ChainOrder, name: str, found: list[int], new: list[int]) -> list[int]:
    """A request that finds blocks, caches new ones and gives all back."""
    chains.touched(found, name)
    return chains.closed(name, [*found, *new], [])


def test_the_least_recently_used_chain_goes_as_a_whole() -> None:
    chains = order(9)
    assert run(chains, "a", [], [1, 2, 3]) == []
    assert run(chains, "b", [], [4, 5, 6, 7]) == []
    assert sorted(run(chains, "c", [], [8, 9, 10])) == [1, 2, 3]
    assert len(chains) == 7


def test_a_part_shared_with_a_later_chain_stays() -> None:
    chains = order(6)
    run(chains, "a", [], [1, 2, 3, 4])
    run(chains, "b", [1, 2], [5, 6])
    assert sorted(run(chains, "c", [], [7])) == [3, 4]
    assert 1 in chains


def test_a_chain_over_the_bound_is_dropped_and_what_it_found_returns_to_its_place() -> None:
    chains = order(5)
    run(chains, "a", [], [1, 2])
    run(chains, "b", [], [3, 4])
    assert sorted(run(chains, "large", [1, 2], [5, 6, 7, 8])) == [5, 6, 7, 8]
    assert len(chains) == 4
    assert sorted(run(chains, "c", [], [9, 10])) == [1, 2]


def test_what_a_chain_over_the_bound_found_bears_what_is_then_too_much() -> None:
    chains = order(5)
    run(chains, "a", [], [1, 2, 3])
    chains.touched([1, 2], "large")
    run(chains, "b", [], [4, 5, 6])
    assert sorted(chains.closed("large", [1, 2, 7, 8, 9, 10], [])) == [1, 2, 3, 7, 8, 9, 10]
    assert len(chains) == 3


def test_found_blocks_whose_chain_is_gone_have_nowhere_to_return_to() -> None:
    chains = order(3)
    run(chains, "a", [], [1, 2])
    chains.touched([1], "large")
    assert chains.resize(0) == [2]
    assert chains.closed("large", [1], []) == [1]


def test_what_left_a_window_makes_room_by_age_where_its_chain_fits() -> None:
    chains = order(6)
    run(chains, "a", [], [1, 2, 3])
    assert chains.slid("b", [4, 5], lambda: 2) == []
    assert sorted(chains.slid("b", [6, 7], lambda: 2)) == [1, 2, 3]
    assert chains.slid("b", [8, 9, 10], lambda: 2) == [4]
    assert sorted(chains.closed("b", [11, 12], [])) == [5, 6]
    assert len(chains) == 6


def test_what_left_a_window_of_a_chain_too_large_displaces_nobody() -> None:
    chains = order(4)
    run(chains, "a", [], [1, 2, 3])
    assert chains.slid("large", [4], lambda: 9) == []
    assert chains.slid("large", [5, 6], lambda: 9) == [4, 5]
    assert sorted(chains.closed("large", [7, 8, 9, 10, 11], [])) == [6, 7, 8, 9, 10, 11]
    assert len(chains) == 3


def test_a_found_window_returns_too() -> None:
    chains = order(6)
    run(chains, "a", [], [1, 2, 3])
    chains.touched([1, 2, 3], "large")
    assert chains.slid("large", [3], lambda: 9) == []
    assert sorted(chains.closed("large", [1, 2, 4, 5, 6, 7, 8], [])) == [4, 5, 6, 7, 8]
    assert [block for block in range(9) if block in chains] == [1, 2, 3]


def test_what_a_running_request_found_and_left_goes_with_the_chain_it_is_of() -> None:
    chains = order(3)
    run(chains, "a", [], [1, 2, 3])
    chains.touched([2], "large")
    run(chains, "b", [], [4])
    assert sorted(chains.slid("large", [2], lambda: 9)) == [1, 2, 3]
    assert [block for block in range(9) if block in chains] == [4]


def test_a_block_still_in_use_goes_to_the_request_that_is_done_last() -> None:
    chains = order(4)
    run(chains, "a", [], [1])
    assert chains.closed("b", [3], [2]) == []
    assert chains.closed("c", [2, 4], []) == []
    assert chains.resize(2) == [1, 3]


def test_a_kept_chain_that_one_over_the_bound_shared_stays() -> None:
    chains = order(4)
    chains.touched([1], "large")
    assert chains.closed("a", [2], [1]) == []
    assert sorted(chains.closed("large", [1, 3, 4, 5, 6], [])) == [3, 4, 5, 6]
    assert [block for block in range(9) if block in chains] == [1, 2]


def test_blocks_given_back_late_are_one_chain() -> None:
    chains = order(4)
    chains.slid("a", [9], lambda: 2)
    chains.deferred("a", [2, 1, 0])
    run(chains, "b", [], [3])
    assert chains.freed([2, 1, 0], [2, 1], []) == []
    assert chains.resize(3) == [3]
    assert sorted(chains.resize(2)) == [1, 2, 9]


def test_a_block_a_copy_had_pinned_goes_with_the_request_that_found_it() -> None:
    chains = order(4)
    run(chains, "a", [], [1, 2])
    chains.touched([1, 2], "b")
    chains.closed("b", [2], [1])
    run(chains, "c", [], [3])
    assert chains.freed([1], [1], []) == []
    assert sorted(chains.resize(2)) == [1, 2]


def test_gone_blocks_are_forgotten() -> None:
    chains = order(4)
    run(chains, "a", [], [1, 2])
    chains.touched([1], "b")
    chains.gone([1, 2])
    assert len(chains) == 0
    assert chains.closed("b", [1, 3, 4, 5, 6], []) == [1, 3, 4, 5, 6]
    run(chains, "c", [], [7])
    chains.clear()
    assert len(chains) == 0
    assert not chains._kept


def test_chains_that_lost_all_to_later_ones_are_forgotten() -> None:
    chains = order(None)
    for turn in range(50):
        run(chains, f"turn {turn}", list(range(turn)), [turn])
    assert len(chains._kept) == 1
    assert not chains._live
    assert not chains._user
    assert not chains._home


def owned(chains: ChainOrder, name: str, owner: str, blocks: list[int], seconds: int = 0) -> list[int]:
    """A request of an owner that caches blocks and gives them back."""
    chains.begun(name, owner, seconds)
    return chains.closed(name, blocks, [])


def test_over_its_share_an_owner_gives_up_its_own_chains() -> None:
    chains = order(6)
    chains.resize(6, Shares(0.5))
    owned(chains, "1", "a", [1, 2])
    owned(chains, "2", "b", [3, 4])
    owned(chains, "3", "b", [5, 6])
    assert owned(chains, "4", "b", [7]) == [3, 4]
    assert owned(chains, "5", "a", [8, 9]) == [1, 2]
    assert chains.owners() == {"a": 2, "b": 3}


def test_a_chain_that_would_take_from_others_within_their_shares_is_not_kept() -> None:
    chains = order(6)
    chains.resize(6, Shares(0.5))
    owned(chains, "1", "a", [1, 2])
    owned(chains, "2", "b", [3])
    assert sorted(owned(chains, "3", "b", [4, 5, 6, 7, 8])) == [4, 5, 6, 7, 8]
    assert chains.owners() == {"a": 2, "b": 1}
    assert owned(chains, "4", "b", [4, 5, 6, 7]) == [3]
    assert chains.owners() == {"a": 2, "b": 4}


def test_one_within_its_share_takes_from_those_over_theirs() -> None:
    chains = order(6)
    chains.resize(6, Shares(0.5))
    owned(chains, "1", "a", [1, 2])
    owned(chains, "2", "b", [3, 4, 5, 6])
    assert owned(chains, "3", "c", [7]) == [3, 4, 5, 6]


def test_kept_chains_go_last_and_the_least_recent_is_kept_no_longer_where_too_much_is() -> None:
    now = [0.0]
    chains = ChainOrder(lambda: now[0])
    chains.resize(6, Shares(kept=0.5))
    owned(chains, "1", "a", [1, 2], 300)
    owned(chains, "2", "a", [3, 4])
    assert owned(chains, "3", "a", [5, 6, 7]) == [3, 4]
    assert owned(chains, "4", "a", [8, 9], 300) == [1, 2]
    now[0] = 301
    assert owned(chains, "5", "a", [10, 11]) == [5, 6, 7]
    assert owned(chains, "6", "a", [12, 13, 14]) == [8, 9]
    assert not chains.biased
    assert chains.take(1) == [10, 11]


def test_where_nothing_is_to_be_kept_no_chain_is_looked_at_for_it() -> None:
    class Unread(OrderedDict[Chain, None]):
        def __iter__(self) -> Iterator[Chain]:
            raise AssertionError("looked at every chain")

    chains = order(6)
    owned(chains, "1", "a", [1, 2], 300)
    chains._kept = Unread(chains._kept)
    assert not chains.biased


def test_the_next_chain_of_owners_over_their_shares_is_found_without_looking_at_all() -> None:
    looked = [0]

    class Counted(OrderedDict[Chain, None]):
        def __iter__(self) -> Iterator[Chain]:
            for chain in super().__iter__():
                looked[0] += 1
                yield chain

    chains = order(1000)
    chains.resize(1000, Shares(0.1))
    for number in range(900):
        owned(chains, str(number), "ab"[number % 2], [number])
    chains._kept = Counted(chains._kept)
    assert chains.take(10) == list(range(10))
    assert looked[0] <= 40
