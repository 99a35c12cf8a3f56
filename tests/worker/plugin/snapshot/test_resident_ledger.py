"""The ledger against a plain set of what was stored and removed, and its snapshots against the ledger itself."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.digest import engine_number
from cachefleet_worker.plugin.snapshot.ancestry import Hash
from cachefleet_worker.plugin.snapshot.event_batches import BlockRemoved, BlockStored, batches, parents_first
from cachefleet_worker.plugin.snapshot.resident_ledger import MASK, ResidentLedger, Total

SIZE = 2
FULL = "full_attention"


class AllBlocksCleared:
    pass


class BlockMoved:
    """Of a later release."""


def stored(hashes: list[Hash], parent: Hash | None = None, **fields: Any) -> BlockStored:
    tokens = [token for h in hashes for token in (engine_number(h) % 1000, engine_number(h) % 7)]
    values: dict[str, Any] = {
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": FULL,
    }
    return BlockStored(**values | fields)


def removed(*hashes: Hash, medium: str = "GPU", group: int = 0) -> BlockRemoved:
    return BlockRemoved(list(hashes), medium, group)


def kept(*events: Any, **limits: int) -> ResidentLedger:
    ledger = ResidentLedger(**limits)
    ledger.apply(events)
    return ledger


def events_of(ledger: ResidentLedger, size: int = 256) -> list[Any]:
    decoder = msgspec.msgpack.Decoder(tuple[float, list[BlockStored | BlockRemoved], int])
    found = [decoder.decode(payload) for payload in batches(ledger.copy(), rank=3, now=1.5, size=size)]
    assert all((now, rank) == (1.5, 3) for now, _, rank in found)
    return [event for _, events, _ in found for event in events]


def again(ledger: ResidentLedger, size: int = 256) -> ResidentLedger:
    """What somebody makes of the ledger's snapshot, who believes the names in it of blocks below the device too."""
    taken = kept(*(each for event in events_of(ledger, size) for each in (*on_device(event), event)))
    extra = taken.device_hashes() - ledger.device_hashes()
    taken.apply(removed(block_hash, group=group) for group, block_hash in sorted(extra, key=str))
    return taken


def on_device(event: Any) -> list[BlockStored]:
    named = isinstance(event, BlockStored) and event.token_ids
    return [msgspec.structs.replace(event, medium="GPU", locality=None, ownership=None)] if named else []


def contents(ledger: ResidentLedger) -> list[tuple[Any, dict[Hash, Any]]]:
    return [(copy.place, copy.blocks) for copy in ledger.copy() if copy.blocks]


def hashes(ledger: ResidentLedger) -> set[Hash]:
    return {block_hash for _, block_hash in ledger.device_hashes()}


def test_a_chain_comes_back_as_one_event() -> None:
    ledger = kept(stored([1, 2]), stored([3], 2), stored([4, 5], 3))
    [event] = events_of(ledger)
    assert event == stored([1, 2, 3, 4, 5])


def test_what_is_removed_is_gone_and_a_reset_empties_all() -> None:
    ledger = kept(stored([1, 2, 3]), removed(3), removed(99), stored([9], medium="CPU"))
    assert hashes(ledger) == {1, 2}
    assert len(ledger) == 3
    ledger.apply([AllBlocksCleared(), BlockMoved()])
    assert len(ledger) == 0
    assert events_of(ledger) == []
    assert [total.digest for total in ledger.totals()] == [0]


def test_announcing_again_changes_nothing() -> None:
    ledger = kept(stored([1, 2]), stored([1, 2]), stored([1, 2, 3]))
    assert ledger.totals() == [Total(0, 3, 6)]
    ledger.apply([removed(1), removed(1)])
    assert ledger.totals() == [Total(0, 2, 5)]


def test_the_digest_is_of_the_last_64_bits() -> None:
    ledger = kept(stored([MASK, b"\xff" * 24 + (5).to_bytes(8, "big")]))
    assert ledger.totals() == [Total(0, 2, 4)]


def test_a_parent_stored_later_still_comes_first() -> None:
    ledger = kept(stored([1, 2, 3]), removed(1), stored([1]), stored([4], 1))
    order = [block_hash for block_hash, _ in parents_first(ledger.copy()[0])]
    assert order.index(1) < order.index(2) < order.index(3)
    assert sorted(order) == [1, 2, 3, 4]


def test_blocks_without_their_ancestors_are_sent_with_them_and_these_are_taken_back() -> None:
    ledger = kept(stored([1, 2, 3, 4]), removed(1, 2))
    *before, last = events_of(ledger)
    assert before == [stored([1, 2, 3, 4])]
    assert last == removed(1, 2)
    assert hashes(again(ledger)) == {3, 4}


def test_ancestors_that_nobody_needs_are_not_kept() -> None:
    ledger = kept(stored([1, 2, 3]), stored([4], 1), removed(1, 2), removed(3))
    [copy] = ledger.copy()
    assert set(copy.tombstones) == {1}
    ledger.apply([removed(4)])
    [copy] = ledger.copy()
    assert not copy.tombstones
    assert not ledger._families[0].children


def test_an_ancestor_that_is_stored_again_is_no_tombstone() -> None:
    ledger = kept(stored([1, 2, 3]), removed(1, 2), stored([1, 2]), removed(3))
    [copy] = ledger.copy()
    assert not copy.tombstones
    ledger.apply([removed(2), removed(1)])
    assert not ledger._families[0].children


def test_tombstones_are_bounded() -> None:
    ledger = kept(stored([1, 2, 3, 4, 5]), removed(1, 2, 3, 4), max_tombstones=2)
    [copy] = ledger.copy()
    assert set(copy.tombstones) == {3, 4}
    ledger.apply([removed(5)])
    assert not ledger._families[0].children


def test_traits_are_kept_for_each_block_and_shared() -> None:
    salted = stored([1, 2, 3], extra_keys=[("salt",), None, (b"digest", "x")])
    lora = stored([11, 12], lora_id=7, lora_name="l", extra_keys=[("l",), ("l",)])
    ledger = kept(salted, lora)
    assert events_of(ledger) == [salted, lora]
    blocks = ledger.copy()[0].blocks
    assert blocks[11].traits is blocks[12].traits


def test_an_extra_key_that_is_no_plain_value_is_kept_as_well() -> None:
    event = stored([1], extra_keys=[(["of a later release"],)])
    assert events_of(kept(event)) == [event]


def test_traits_ready_are_bounded() -> None:
    ledger = kept(*(stored([n], extra_keys=[(f"salt{n}",)]) for n in range(5000)))
    assert len(ledger._traits) <= 4097
    assert contents(again(ledger)) == contents(ledger)


def test_window_groups_are_given_by_hash_alone() -> None:
    window: dict[str, Any] = {
        "group_idx": 1,
        "kv_cache_spec_kind": "sliding_window",
        "kv_cache_spec_sliding_window": 64,
    }
    ledger = kept(stored([1, 2, 3, 4]), stored([3, 4], 2, token_ids=[1, 2, 3, 4, 5, 6, 7, 8], **window))
    first, second = events_of(ledger)
    assert first == stored([1, 2, 3, 4])
    assert second == stored([3, 4], token_ids=[], **window)
    assert [(total.group, total.blocks) for total in ledger.totals()] == [(0, 4), (1, 2)]
    assert ledger.device_hashes() == {(0, 1), (0, 2), (0, 3), (0, 4), (1, 3), (1, 4)}


def test_of_the_named_group_ancestors_that_came_first_are_kept() -> None:
    """A prefill in chunks of which the window keeps only the last blocks: they are named by those before."""
    window: dict[str, Any] = {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 64}
    ledger = ResidentLedger(named=0)
    ledger.apply([stored([1, 2], **window), removed(1, 2), stored([3, 4], 2, **window), removed(3)])
    assert events_of(ledger) == [stored([1, 2, 3, 4], **window), removed(1, 2, 3)]
    assert len(ledger) == 1
    ledger.apply([removed(4), stored([1], **window), stored([9], **window)])
    assert [event.block_hashes for event in events_of(ledger)] == [[1], [9]]


@pytest.mark.parametrize("tokens", [[1, 2, 3], [-1, 2, 3, 4], [2**32, 2, 3, 4]])
def test_tokens_that_do_not_fit_are_left_out(tokens: list[int]) -> None:
    assert events_of(kept(stored([1, 2], token_ids=tokens))) == [stored([1, 2], token_ids=[])]


def test_a_medium_that_announces_by_hash_is_given_with_what_the_hash_means() -> None:
    announced = stored([1, 2, 77], medium="CPU", token_ids=[], block_size=0)
    ledger = kept(stored([1, 2]), announced, removed(1, 2))
    assert events_of(ledger) == [stored([1, 2], medium="CPU"), stored([77], medium="CPU", token_ids=[], block_size=0)]
    ledger.apply([removed(1, 2, 77, medium="CPU")])
    assert not ledger._families[0].children


def test_a_medium_below_says_nothing_of_a_blocks_identity() -> None:
    """LMCache's events have no salt: the device's word counts, and what was never there stays without a name."""
    salted = stored([1], extra_keys=[("salt",)])
    ledger = kept(salted, stored([1, 9], medium="cpu"), removed(1))
    assert events_of(ledger) == [
        msgspec.structs.replace(salted, medium="cpu"),
        stored([9], medium="cpu", token_ids=[]),
    ]


def test_an_ancestor_gone_from_every_medium_is_sent_where_it_is_needed() -> None:
    announced = stored([2], medium="CPU", token_ids=[])
    ledger = kept(stored([1, 2]), announced, removed(1, 2))
    assert events_of(ledger) == [stored([1, 2], medium="CPU"), removed(1, medium="CPU")]


def test_places_are_told_apart() -> None:
    remote = stored([1], locality="REMOTE")
    owned = stored([1], medium="STORAGE", ownership="tier")
    ledger = kept(stored([1]), remote, owned, removed(1))
    assert hashes(ledger) == set()
    assert len(ledger) == 2
    assert contents(again(ledger)) == contents(ledger)


def test_frames_are_of_at_most_so_many_blocks() -> None:
    ledger = kept(stored(list(range(1, 1000))), removed(*range(1, 998)))
    decode = msgspec.msgpack.decode
    for payload in batches(ledger.copy(), rank=0, now=0.0, size=100):
        assert sum(len(event["block_hashes"]) for event in decode(payload)[1]) <= 100
    assert contents(again(ledger, 100)) == contents(ledger)


Step = tuple[str, int, int]


def apply_step(ledger: ResidentLedger, step: Step, known: dict[Hash, Hash | None], held: set[tuple[str, Hash]]) -> None:
    what, one, other = step
    names = sorted(known, key=engine_number)
    if what == "store":
        parent = names[other % len(names)] if names and other % 3 else None
        block_hash: Hash = engine_number(parent or 0) * 31 + one + 1
        known.setdefault(block_hash, parent)
        ledger.apply([stored([block_hash], known[block_hash])])
        held.add(("GPU", block_hash))
    elif names and what == "host":
        block_hash = names[one % len(names)]
        ledger.apply([stored([block_hash], medium="CPU", token_ids=[])])
        held.add(("CPU", block_hash))
    elif names:
        block_hash = names[one % len(names)]
        medium = "GPU" if other % 2 else "CPU"
        ledger.apply([removed(block_hash, medium=medium)])
        held.discard((medium, block_hash))


@given(
    st.lists(
        st.tuples(st.sampled_from(["store", "store", "host", "remove"]), st.integers(0, 30), st.integers(0, 30)),
        max_size=80,
    ),
    st.integers(1, 5),
)
def test_a_snapshot_of_any_history_is_the_ledger_again(steps: Iterable[Step], size: int) -> None:
    ledger, known, held = ResidentLedger(), dict[Hash, Hash | None](), set[tuple[str, Hash]]()
    for step in steps:
        apply_step(ledger, step, known, held)
    assert {(copy.place.medium, h) for copy in ledger.copy() for h in copy.blocks} == held
    twin = again(ledger, size)
    named = {h: b for _, blocks in contents(ledger) for h, b in blocks.items() if b.tokens}
    assert {h: b for _, blocks in contents(twin) for h, b in blocks.items() if b.tokens} == named
    assert [total for total in twin.totals() if total.blocks] == [total for total in ledger.totals() if total.blocks]
    ledger.apply([removed(h, medium=medium) for medium, h in sorted(held, key=str)])
    assert len(ledger) == 0
    assert not ledger._families or not ledger._families[0].children


def test_every_block_comes_after_its_parent_in_a_big_random_forest() -> None:
    rng = random.Random(1)
    ledger = ResidentLedger()
    held: list[Hash] = []
    for _ in range(3000):
        new: list[Hash] = [rng.getrandbits(64) for _ in range(rng.randrange(1, 5))]
        ledger.apply([stored(new, rng.choice([None, *held[-20:]]))])
        held += new
        ledger.apply([removed(held.pop(rng.randrange(len(held))))])
    seen: set[Hash] = set()
    [copy] = ledger.copy()
    for block_hash, block in parents_first(copy):
        assert block.parent is None or block.parent in seen
        assert block_hash not in seen
        seen.add(block_hash)
    assert set(copy.blocks) == set(held) <= seen
    assert copy.tombstones
