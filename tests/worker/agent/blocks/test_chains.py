from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.block_keys import BlockKey, Tier
from cachefleet_core.report_frames import Cleared, Removed, Stored
from cachefleet_worker.agent.blocks.chains import MAX_CHAIN_KEYS, Changes, Link, chains
from tests.worker.agent.receiver import Receiver, checked


def key(number: int) -> BlockKey:
    return BlockKey(number)


def shown(changes: Changes) -> list[tuple[object, ...]]:
    out: list[tuple[object, ...]] = []
    for operation in changes.take():
        match operation:
            case Stored():
                out.append(("+", operation.parent, operation.unpack(), operation.tier))
            case Removed():
                out.append(("-", operation.unpack(), operation.tier))
            case Cleared():
                out.append(("clear",))
    return out


def test_neighbours_merge_and_order_stays() -> None:
    changes = Changes()
    for parent, child in ((0, 1), (1, 2), (9, 3)):
        changes.stored(key(parent), key(child), Tier.DEVICE)
    changes.stored(key(3), key(4), Tier.HOST)
    changes.removed(key(1), Tier.DEVICE)
    changes.removed(key(2), Tier.DEVICE)
    changes.removed(key(4), Tier.HOST)
    changes.stored(key(0), key(1), Tier.DEVICE)
    assert changes
    assert shown(changes) == [
        ("+", 0, [1, 2], Tier.DEVICE),
        ("+", 9, [3], Tier.DEVICE),
        ("+", 3, [4], Tier.HOST),
        ("-", [1, 2], Tier.DEVICE),
        ("-", [4], Tier.HOST),
        ("+", 0, [1], Tier.DEVICE),
    ]
    assert not changes
    assert changes.take() == []


def test_removals_are_counted_until_they_are_taken_or_all_is_cleared() -> None:
    changes = Changes()
    for number in (1, 2):
        changes.stored(key(0), key(number), Tier.DEVICE)
        changes.removed(key(number), Tier.DEVICE)
    assert changes.removals == 2
    changes.take()
    assert changes.removals == 0
    changes.removed(key(3), Tier.DEVICE)
    changes.cleared()
    assert changes.removals == 0


def test_a_clear_makes_what_was_before_irrelevant() -> None:
    changes = Changes()
    changes.stored(key(0), key(1), Tier.DEVICE)
    changes.cleared()
    changes.stored(key(0), key(2), Tier.DEVICE)
    assert shown(changes) == [("clear",), ("+", 0, [2], Tier.DEVICE)]


def test_chains_and_removals_are_cut() -> None:
    changes = Changes()
    for number in range(1, MAX_CHAIN_KEYS + 2):
        changes.stored(key(number - 1), key(number), Tier.DEVICE)
    for number in range(1, MAX_CHAIN_KEYS + 2):
        changes.removed(key(number), Tier.DEVICE)
    operations = shown(changes)
    assert [operation[0] for operation in operations] == ["+", "+", "-", "-"]
    assert operations[1] == ("+", MAX_CHAIN_KEYS, [MAX_CHAIN_KEYS + 1], Tier.DEVICE)


def test_a_long_line_is_cut_with_its_branches() -> None:
    line = [Link(key(n), key(n - 1)) for n in range(1, MAX_CHAIN_KEYS + 3)]
    branches = [Link(key(10**6 + n), key(MAX_CHAIN_KEYS + n)) for n in range(2)]
    receiver = Receiver()
    receiver.apply(checked(list(chains([*line, *branches], Tier.DEVICE))))
    assert receiver.keys == {node.key for node in (*line, *branches)}


@given(st.lists(st.integers(0, 30), max_size=60), st.sets(st.integers(1, 60)))
def test_any_forest_with_holes_arrives_whole_and_parents_first(parents: list[int], gone: set[int]) -> None:
    nodes = [Link(key(n), key(min(parent, n - 1))) for n, parent in enumerate(parents, start=1) if n not in gone]
    receiver = Receiver()
    receiver.apply(checked(list(chains(nodes, Tier.DEVICE))))
    assert receiver.keys == {node.key for node in nodes}
