from __future__ import annotations

from typing import Any

import pytest

from cachefleet_core.block_identity.adapters import adapter_namespace, path_revision
from cachefleet_core.block_identity.media import MediaKeyer
from cachefleet_core.block_keys import BlockKey, BlockKeyer, Namespace, Tier
from cachefleet_core.hit_rule import CacheGroup, HitRule, window_key
from cachefleet_core.report_frames import Cleared, Removed, Stored
from cachefleet_worker.agent.blocks.block_events import AllBlocksCleared, BlockRemoved, BlockStored, Total, Unreadable
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from tests.worker.agent.model import BLOCK_SIZE, CONTRACT, INDEX_KEY, keys_of
from tests.worker.agent.receiver import Receiver, checked

TOKENS = [1, 2, 3, 4, 5, 6, 7, 8]
HASHES = [11, 12, 13, 14]


def stored(
    hashes: list[Any],
    tokens: list[int],
    parent: Any = None,
    *,
    extra: list[list[Any] | None] | None = None,
    **fields: Any,
) -> BlockStored:
    values: dict[str, Any] = {"block_size": BLOCK_SIZE, "medium": "GPU"} | fields
    return BlockStored(hashes, parent, tokens, extra_keys=extra, **values)


def removed(*hashes: Any, medium: str = "GPU", **fields: Any) -> BlockRemoved:
    return BlockRemoved(list(hashes), medium, **fields)


class Held:
    """Residents and what a receiver of their operations holds; both are compared after each step."""

    def __init__(self, **changes: Any) -> None:
        self.residents = Residents(INDEX_KEY, CONTRACT, block_size=BLOCK_SIZE, **changes)
        self.receiver = Receiver()

    def apply(self, *events: Any) -> list[Any]:
        self.residents.apply(events)
        operations = self.residents.take()
        self.receiver.apply(operations)
        assert self.receiver.digest == self.residents.digest
        assert len(self.receiver.held) == self.residents.held
        fresh = Receiver()
        fresh.apply(checked(self.residents.snapshot()))
        assert fresh.held == self.receiver.held
        return operations

    @property
    def keys(self) -> set[int]:
        return set(self.receiver.keys)


@pytest.fixture
def held() -> Held:
    return Held()


def test_blocks_that_differ_in_what_follows_them_are_held_and_removed_apart() -> None:
    held = Held(lookahead=1)
    keyer = BlockKeyer(INDEX_KEY, Namespace(CONTRACT), BLOCK_SIZE, 1)
    one, other = keyer.keys([1, 2, 3, 4, 5]), keyer.keys([1, 2, 3, 4, 6])
    assert one[0] == other[0] != one[1] != other[1]
    held.apply(stored([11, 12], [1, 2, 3, 4], lookahead_token_ids=[[3], [5]]))
    held.apply(stored([13], [3, 4], 11, lookahead_token_ids=[[6]]))
    assert held.keys == {*one, *other}
    held.apply(removed(13))
    assert held.keys == set(one)
    held.apply(stored([14], [6, 7], 13, lookahead_token_ids=[[8]]))  # after a block that is gone
    assert held.keys == {*one, keyer.keys([1, 2, 3, 4, 6, 7, 8])[2]}


@pytest.mark.parametrize(
    ("lookahead", "told", "other"), [(0, [[3], [5]], 1), (1, None, 0), (1, [[3, 4], [5, 6]], 2), (1, [[3], []], None)]
)
def test_blocks_of_another_lookahead_than_the_contracts_have_no_key(
    lookahead: int, told: list[list[int]] | None, other: int | None
) -> None:
    """A key would be of something else than the engine's hash: what it says is held might not be served."""
    held = Held(lookahead=lookahead)
    held.apply(stored([11, 12], [1, 2, 3, 4], lookahead_token_ids=told))
    assert not held.keys
    assert (held.residents.counts["lookahead"], held.residents.unkeyed) == (2, True)
    assert held.residents.other_lookahead == other
    held.apply(stored([13], [5, 6], 12, lookahead_token_ids=[[7]] if lookahead else None))
    assert not held.keys, "a child of what has no key"


def test_a_chain_is_reported_as_one(held: Held) -> None:
    keys = keys_of(TOKENS)
    [operation] = held.apply(stored(HASHES[:2], TOKENS[:4]), stored(HASHES[2:], TOKENS[4:], HASHES[1]))
    assert isinstance(operation, Stored)
    assert (operation.parent, operation.unpack(), operation.tier) == (0, keys, Tier.DEVICE)


def test_a_child_is_keyed_after_its_parent(held: Held) -> None:
    keys = keys_of(TOKENS)
    held.apply(stored(HASHES[:3], TOKENS[:6]))
    [operation] = held.apply(stored(HASHES[3:], TOKENS[6:], HASHES[2]))
    assert (operation.parent, operation.unpack()) == (keys[2], keys[3:])


def test_hashes_of_bytes_work_as_well(held: Held) -> None:
    held.apply(stored([b"a" * 32], TOKENS[:2]), stored([b"b" * 32], TOKENS[2:4], b"a" * 32), removed(b"a" * 32))
    assert held.keys == set(keys_of(TOKENS[:4])[1:])


def test_what_is_held_is_not_reported_again(held: Held) -> None:
    held.apply(stored(HASHES[:2], TOKENS[:4]))
    [operation] = held.apply(stored(HASHES, TOKENS))
    assert operation.unpack() == keys_of(TOKENS)[2:]
    assert held.apply(stored(HASHES, TOKENS)) == []


def test_the_first_removal_of_two_copies_withdraws_the_claim(held: Held) -> None:
    held.apply(stored(HASHES[:1], TOKENS[:2]), stored(HASHES[:1], TOKENS[:2]))
    held.apply(removed(HASHES[0]))
    assert held.keys == set()
    assert held.apply(removed(HASHES[0])) == []


def test_order_within_a_batch_is_kept(held: Held) -> None:
    operations = held.apply(stored(HASHES[:1], TOKENS[:2]), removed(HASHES[0]), stored(HASHES[:1], TOKENS[:2]))
    assert [type(operation) for operation in operations] == [Stored, Removed, Stored]


def test_a_child_of_a_removed_block_is_keyed(held: Held) -> None:
    held.apply(stored(HASHES[:1], TOKENS[:2]), removed(HASHES[0]), stored(HASHES[1:2], TOKENS[2:4], HASHES[0]))
    assert held.keys == {keys_of(TOKENS)[1]}


def test_keys_of_removed_blocks_are_bounded() -> None:
    held = Held(remembered=2)
    held.apply(stored(HASHES, TOKENS), removed(*HASHES))
    held.apply(stored([15], [9, 9], HASHES[0]))
    assert held.keys == set()
    assert held.residents.counts["unknown_parent"] == 1
    held.apply(stored([16], [9, 9], HASHES[3]))
    assert held.keys == {keys_of([*TOKENS, 9, 9])[-1]}


def test_a_chain_of_unknown_ancestry_is_not_reported(held: Held) -> None:
    assert held.apply(stored([50, 51], TOKENS[:4], 49)) == []
    assert held.residents.counts["unknown_parent"] == 2
    held.apply(stored([49, 50, 51], [0, 0, *TOKENS[:4]]))  # announced again, whole
    assert held.keys == set(keys_of([0, 0, *TOKENS[:4]]))


def test_clear_and_what_cannot_be_read_empty_the_set(held: Held) -> None:
    for event in (AllBlocksCleared(), Unreadable()):
        held.apply(stored(HASHES, TOKENS))
        operations = held.apply(event, stored([15], [9, 9], HASHES[3]))
        assert isinstance(operations[0], Cleared)
        assert held.keys == {keys_of([*TOKENS, 9, 9])[-1]}
    assert held.residents.counts["unreadable"] == 1


def test_the_salt_of_the_first_block_names_the_chain(held: Held) -> None:
    held.apply(stored(HASHES[:2], TOKENS[:4], extra=[["a"], None]))
    held.apply(stored(HASHES[2:3], TOKENS[4:6], HASHES[1], extra=[None]))
    held.apply(stored([21], TOKENS[:2], extra=[["b"]]))
    assert held.keys == {*keys_of(TOKENS[:6], salt="a"), *keys_of(TOKENS[:2], salt="b")}


def test_an_adapter_and_its_revision_name_the_chain(held: Held) -> None:
    lora: dict[str, Any] = {"lora_name": "l", "lora_id": path_revision("/a")}
    held.apply(stored(HASHES[:2], TOKENS[:4], extra=[["a"], None], **lora))
    held.apply(stored(HASHES[2:3], TOKENS[4:6], HASHES[1], **lora))
    assert held.keys == set(keys_of(TOKENS[:6], salt="a", lora=adapter_namespace("l", path_revision("/a"))))


@pytest.mark.parametrize("lora", [{"lora_id": 1}, {"lora_name": "l"}, {"lora_name": "l", "lora_id": 1}])
def test_an_adapter_whose_name_or_revision_is_not_told_is_not_reported(held: Held, lora: dict[str, Any]) -> None:
    assert held.apply(stored(HASHES, TOKENS, **lora)) == []
    assert held.residents.counts["adapter_revision"] == 4
    assert held.residents.unkeyed


def test_another_revision_under_the_same_name_is_another_chain(held: Held) -> None:
    first, second = path_revision("/a"), path_revision("/b")
    held.apply(stored([1], TOKENS[:2], lora_name="l", lora_id=first))
    old, new = (set(keys_of(TOKENS[:2], lora=adapter_namespace("l", each))) for each in (first, second))
    assert held.keys == old
    held.apply(stored([2], TOKENS[:2], lora_name="l", lora_id=second))
    assert held.keys == old | new
    held.apply(removed(1))
    assert held.keys == new


def test_media_are_part_of_their_blocks_keys(held: Held) -> None:
    extra: list[list[Any] | None] = [[("i", 1), "salt"], [("i", -1), ("j", 0)], None, None]
    held.apply(stored(HASHES, TOKENS, extra=extra))
    namespace = Namespace(CONTRACT, "salt")
    keyer = MediaKeyer(INDEX_KEY, namespace, BlockKeyer(INDEX_KEY, namespace, BLOCK_SIZE))
    expected = keyer.keys(TOKENS, [[("i", 1)], [("i", -1), ("j", 0)], [], []])
    assert held.keys == set(expected)
    assert not held.keys & set(keys_of(TOKENS, salt="salt"))
    held.apply(stored([40], [9, 9], HASHES[3]))
    assert held.keys == set(keyer.keys([*TOKENS, 9, 9], [[("i", 1)], [("i", -1), ("j", 0)], [], [], []]))


def test_another_extra_key_ends_the_chain(held: Held) -> None:
    held.apply(stored(HASHES, TOKENS, extra=[["salt"], None, [None], None]))
    assert held.keys == set(keys_of(TOKENS, salt="salt")[:2])
    assert held.apply(stored([30], [9, 9], HASHES[3]), stored([31], [9, 9], 30)) == []
    assert held.residents.counts["extra_key"] == 4
    assert held.residents.unkeyed
    assert held.residents.counts["unknown_parent"] == 0


def test_text_in_a_later_block_is_no_salt(held: Held) -> None:
    held.apply(stored(HASHES[:2], TOKENS[:4], extra=[None, ["x"]]))
    assert held.keys == {keys_of(TOKENS)[0]}


def test_two_texts_in_the_first_block_name_nothing(held: Held) -> None:
    assert held.apply(stored(HASHES, TOKENS, extra=[["salt", "more"], None, None, None])) == []


@pytest.mark.parametrize(
    ("hashes", "tokens", "size"), [([1, 2], TOKENS, 4), ([1, 2], TOKENS, 2), ([1], [1], 1), ([1, 2, 3], TOKENS[:4], 2)]
)
def test_blocks_of_another_size_are_not_reported(held: Held, hashes: list[int], tokens: list[int], size: int) -> None:
    assert held.apply(stored(hashes, tokens, block_size=size)) == []
    assert held.apply(stored([9], TOKENS[:2], hashes[-1])) == []
    assert held.residents.counts["unknown_parent"] == 0


SLIDING: dict[str, Any] = {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 4}
FULL: dict[str, Any] = {"kv_cache_spec_kind": "full_attention"}


def window_keys(window: int, keys: list[BlockKey]) -> set[BlockKey]:
    return {window_key(key, window) for key in keys}


def test_a_windows_blocks_have_keys_of_their_own(held: Held) -> None:
    """Listed are the last two; the window is of two blocks, its hashes are named by full attention's event after it."""
    keys = keys_of(TOKENS)
    held.apply(stored(HASHES[2:], TOKENS, group_idx=0, **SLIDING), stored(HASHES, TOKENS, group_idx=1, **FULL))
    assert held.residents.rule == HitRule(windows=(2,))
    assert held.keys == {*keys, *window_keys(2, keys[2:])}
    held.apply(removed(HASHES[3], group_idx=1))
    assert held.keys == {*keys[:3], *window_keys(2, keys[2:])}
    held.apply(removed(HASHES[2], group_idx=0))
    assert held.keys == {*keys[:3], *window_keys(2, keys[3:])}
    held.apply(AllBlocksCleared())
    assert held.keys == set()
    assert not held.residents.unkeyed


def test_groups_of_one_rule_are_held_where_all_of_them_hold(held: Held) -> None:
    keys = keys_of(TOKENS)
    held.apply(stored(HASHES, TOKENS, group_idx=0, **FULL))
    held.apply(stored(HASHES[:3], TOKENS[:6], group_idx=1, **FULL))
    assert held.keys == set(keys[:3])
    held.apply(stored(HASHES[1:], TOKENS, group_idx=2, **SLIDING))
    held.apply(stored(HASHES[1:2], TOKENS, group_idx=3, **SLIDING))
    assert held.keys == {*keys[:3], *window_keys(2, keys[1:2])}
    held.apply(removed(HASHES[0], group_idx=0), removed(HASHES[1], group_idx=2))
    assert held.keys == set(keys[1:3])


def test_a_model_of_windows_alone_has_their_keys_alone(held: Held) -> None:
    held.apply(stored(HASHES, TOKENS, **SLIDING), removed(*HASHES[:2]))
    assert held.residents.rule == HitRule(full=False, windows=(2,))
    assert held.keys == window_keys(2, keys_of(TOKENS)[2:])


def test_blocks_that_nothing_names_are_not_reported(held: Held) -> None:
    held.apply(stored(HASHES[2:], TOKENS, **SLIDING))
    assert (held.keys, held.residents.unkeyed) == (set(), True)


@pytest.mark.parametrize(
    "odd",
    [
        {"kv_cache_spec_kind": "chunked_local_attention"},
        {"kv_cache_spec_kind": "sliding_window"},
        {"kv_cache_spec_kind": "mamba", "block_size": 4},
    ],
)
def test_with_a_group_that_is_not_understood_nothing_is_reported(held: Held, odd: dict[str, Any]) -> None:
    held.apply(stored(HASHES, TOKENS, group_idx=0, **FULL))
    assert held.keys == set(keys_of(TOKENS))
    held.apply(stored(HASHES[: 8 // odd.get("block_size", BLOCK_SIZE)], TOKENS, group_idx=1, **odd))
    assert (held.keys, held.residents.unkeyed) == (set(), True)
    assert "KV cache group 1" in held.residents.unknown
    assert held.residents.agrees(totals(1))


def test_tiers_are_apart(held: Held) -> None:
    keys = keys_of(TOKENS)
    held.apply(stored(HASHES, TOKENS, extra=[["s"], None, None, None]))
    held.apply(BlockStored([*HASHES[:2], 99], None, [], BLOCK_SIZE, medium="CPU"))
    salted = keys_of(TOKENS, salt="s")
    assert held.receiver.held == {(k, Tier.DEVICE) for k in salted} | {(k, Tier.HOST) for k in salted[:2]}
    assert held.residents.counts["unknown_hash"] == 1
    held.apply(removed(*HASHES))
    assert held.receiver.held == {(k, Tier.HOST) for k in salted[:2]}
    held.apply(removed(HASHES[0], medium="CPU"))
    assert held.receiver.held == {(salted[1], Tier.HOST)}
    assert not held.keys & set(keys)


def test_other_media_and_remote_blocks_are_not_reported(held: Held) -> None:
    assert held.apply(stored(HASHES, TOKENS, medium="TAPE"), stored(HASHES, TOKENS, locality="REMOTE")) == []
    held.apply(stored(HASHES, TOKENS))
    assert held.apply(removed(HASHES[0], medium="TAPE"), removed(HASHES[0], locality="REMOTE")) == []


def test_namespaces_ready_are_bounded() -> None:
    held = Held(namespaces=2)
    for number in range(5):
        held.apply(stored([number], TOKENS[:2], extra=[[f"salt{number}"]]))
    held.apply(stored([100], TOKENS[2:4], 0))
    assert keys_of(TOKENS[:4], salt="salt0")[1] in held.keys
    assert len(held.residents._keyers) == 2


def test_a_snapshot_is_cut_into_chains_with_branches() -> None:
    held = Held()
    held.apply(stored(HASHES, TOKENS), stored([21, 22], [9, 9, 9, 9], HASHES[1]), stored([31], [7, 7], HASHES[1]))
    held.apply(removed(HASHES[0]))
    chains = checked(held.residents.snapshot())
    assert sum(len(chain.unpack()) for chain in chains) == 6
    assert len(chains) == 3


class Drafted(Held):
    """Held, and drafts of it adopted; every operation on the way leaves only what is held before or after."""

    def adopt(self, *events: Any) -> list[Any]:
        draft = self.residents.draft()
        for event in events:
            draft.apply([event])
        before = set(self.receiver.held)
        self.residents.adopt(draft)
        operations = self.residents.take()
        fresh = Receiver()
        fresh.apply(checked(self.residents.snapshot()))
        for operation in operations:
            self.receiver.apply([operation])
            assert self.receiver.held <= before | fresh.held
        assert self.receiver.held == fresh.held
        assert self.receiver.digest == self.residents.digest
        assert len(self.receiver.held) == self.residents.held
        return operations


@pytest.fixture
def drafted() -> Drafted:
    return Drafted()


def test_a_draft_changes_nothing_until_it_is_adopted(drafted: Drafted) -> None:
    drafted.apply(stored(HASHES, TOKENS))
    drafted.residents.draft().apply([stored([99], [9, 9]), removed(*HASHES), AllBlocksCleared()])
    assert drafted.apply() == []
    assert drafted.keys == set(keys_of(TOKENS))


def test_only_what_differs_is_reported_and_withdrawn_first(drafted: Drafted) -> None:
    drafted.apply(stored(HASHES, TOKENS), stored([50], [5, 5]))
    gone, new = drafted.adopt(stored(HASHES, TOKENS), stored([60], [6, 6]))
    assert isinstance(gone, Removed)
    assert gone.unpack() == keys_of([5, 5])
    assert isinstance(new, Stored)
    assert new.unpack() == keys_of([6, 6])
    assert drafted.adopt(stored(HASHES, TOKENS), stored([60], [6, 6])) == []


def test_a_draft_of_mostly_other_blocks_is_reported_from_the_start(drafted: Drafted) -> None:
    drafted.apply(stored(HASHES, TOKENS))
    cleared, new = drafted.adopt(stored([60, 61], [6, 6, 7, 7]))
    assert isinstance(cleared, Cleared)
    assert new.unpack() == keys_of([6, 6, 7, 7])


def test_an_empty_draft_empties(drafted: Drafted) -> None:
    assert drafted.adopt() == []
    drafted.apply(stored(HASHES, TOKENS))
    assert [type(operation) for operation in drafted.adopt()] == [Cleared]
    drafted.apply(stored([15], [9, 9], HASHES[3]))  # what was held is remembered
    assert drafted.keys == {keys_of([*TOKENS, 9, 9])[-1]}


def test_ancestors_taken_back_in_a_draft_are_known_after_it(drafted: Drafted) -> None:
    drafted.adopt(stored(HASHES, TOKENS), removed(*HASHES[:3]))
    assert drafted.keys == {keys_of(TOKENS)[3]}
    drafted.apply(stored([70], [7, 7], HASHES[1]))
    assert keys_of([*TOKENS[:4], 7, 7])[2] in drafted.keys


def test_tiers_come_out_of_a_draft(drafted: Drafted) -> None:
    drafted.apply(stored(HASHES[:2], TOKENS[:4]))
    drafted.adopt(stored(HASHES[:1], TOKENS[:2]), stored(HASHES[:2], TOKENS[:4], medium="CPU"))
    first, second = keys_of(TOKENS[:4])
    assert drafted.receiver.held == {(first, Tier.DEVICE), (first, Tier.HOST), (second, Tier.HOST)}
    drafted.adopt(stored(HASHES[:1], TOKENS[:2]), BlockStored([*HASHES[:2]], None, [], 0, medium="CPU"))
    assert drafted.receiver.held == {(first, Tier.DEVICE), (first, Tier.HOST), (second, Tier.HOST)}


def test_what_goes_on_after_a_draft_is_as_ever(drafted: Drafted) -> None:
    drafted.apply(stored(HASHES, TOKENS))
    drafted.adopt(stored(HASHES[:2], TOKENS[:4]))
    drafted.apply(removed(HASHES[1]), stored(HASHES[2:], TOKENS[4:], HASHES[1]))
    keys = keys_of(TOKENS)
    assert drafted.keys == {keys[0], keys[2], keys[3]}


def totals(*hashes: int, group: int = 0) -> list[Total]:
    return [Total(7, 1, 1), Total(group, len(hashes), sum(hashes) % 2**64)]


def test_the_engines_sums_agree_with_what_the_stream_said(drafted: Drafted) -> None:
    residents = drafted.residents
    assert residents.agrees([])
    high = 2**64 - 1
    drafted.apply(stored([*HASHES, high], [*TOKENS, 9, 9]), stored(HASHES, TOKENS))
    assert residents.agrees(totals(*HASHES, high))
    assert not residents.agrees(totals(*HASHES))
    assert not residents.agrees([])
    drafted.apply(removed(high), removed(12345), removed(HASHES[0], medium="CPU"))
    assert residents.agrees(totals(*HASHES))
    drafted.apply(AllBlocksCleared())
    assert residents.agrees(totals())


def test_blocks_that_are_not_reported_are_in_the_sums(drafted: Drafted) -> None:
    drafted.apply(
        stored([1, 2], TOKENS[:4], extra=[[None], None]),
        stored([3], [5, 5], 999),
        stored([4], TOKENS, block_size=8),
        stored([5], TOKENS[:2], lora_id=1),
        BlockStored([6], None, [], BLOCK_SIZE, medium="GPU"),
        stored([8], TOKENS[:2], medium="CPU"),
        stored([9], TOKENS[:2], group_idx=1, kv_cache_spec_kind="sliding_window"),
    )
    assert drafted.residents.agrees(totals(1, 2, 3, 4, 5, 6))
    drafted.apply(removed(2), removed(3))
    assert drafted.residents.agrees(totals(1, 4, 5, 6))


def test_the_sums_are_of_the_group_reported_and_come_with_a_draft(drafted: Drafted) -> None:
    full: dict[str, Any] = {"group_idx": 2, "kv_cache_spec_kind": "full_attention"}
    drafted.adopt(stored([b"\0" * 24 + (5).to_bytes(8, "big")], TOKENS[:2], **full))
    assert drafted.residents.agrees(totals(5, group=2))
    drafted.residents.forget()
    assert drafted.residents.agrees([])


def test_blocks_without_a_key_are_told_of_also_out_of_a_snapshot(held: Held) -> None:
    held.apply(stored([1], TOKENS[:2]))
    assert not held.residents.unkeyed
    draft = held.residents.draft()
    draft.apply([stored([2], TOKENS[:2], group_idx=1, kv_cache_spec_kind="unknown")])
    held.residents.adopt(draft)
    assert held.residents.unkeyed


def test_the_hosts_copy_of_a_window_is_not_that_of_a_block() -> None:
    hybrid = Held(groups=[CacheGroup(0, "full_attention"), CacheGroup(1, "sliding_window", 3)])
    hybrid.apply(stored(HASHES, TOKENS, group_idx=0), stored(HASHES, TOKENS, group_idx=1))
    keys, device = keys_of(TOKENS), hybrid.receiver.held
    hybrid.apply(BlockStored([*HASHES[:2]], None, [], 0, medium="CPU", group_idx=1))
    assert hybrid.receiver.held == device
    hybrid.apply(BlockStored([*HASHES[:2]], None, [], 0, medium="CPU", group_idx=0))
    assert hybrid.receiver.held == device | {(key, Tier.HOST) for key in keys[:2]}
    hybrid.apply(removed(HASHES[0], medium="CPU", group_idx=1), removed(HASHES[1], medium="CPU", group_idx=0))
    assert hybrid.receiver.held == device | {(keys[0], Tier.HOST)}
    assert not hybrid.residents.unkeyed


@pytest.mark.parametrize("told", [{"lora_name": "sql", "lora_id": 1}, {"block_size": 4 * BLOCK_SIZE}])
def test_the_hosts_copy_is_known_by_its_hash_where_its_event_names_it_otherwise(
    held: Held, told: dict[str, Any]
) -> None:
    revision = path_revision("/sql")
    held.apply(stored(HASHES, TOKENS, lora_name="sql", lora_id=revision))
    keys = keys_of(TOKENS, lora=adapter_namespace("sql", revision))
    held.apply(removed(*HASHES), stored(HASHES[:2], TOKENS[:4], medium="CPU", **told))
    assert held.receiver.held == {(key, Tier.HOST) for key in keys[:2]}
    held.apply(
        removed(*HASHES[:2], medium="CPU"),
        stored(
            HASHES[2:],
            TOKENS[4:],
            HASHES[1],
            **told | {"lora_id": revision, "lora_name": "sql", "block_size": BLOCK_SIZE},
        ),
    )
    assert held.keys == set(keys[2:])
    assert not held.residents.unkeyed
