from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.block_keys import NO_PARENT, BlockKey
from cachefleet_core.hit_rule import MAX_WINDOW_BLOCKS, PLAIN, CacheGroup, HitRule, hit_blocks, membership, window_key

FULL, SLIDING = "full_attention", "sliding_window"


def longest(rule: HitRule, blocks: int, held: set[tuple[int, int]]) -> int:
    """The definition, read word for word."""
    return max(
        end
        for end in range(blocks + 1)
        if all((window, at) in held for window in rule.windows for at in range(max(0, end - window), end))
    )


@given(
    st.lists(st.integers(1, 6), unique=True, max_size=3).map(sorted),
    st.integers(0, 24),
    st.floats(0.3, 1.0),
    st.randoms(use_true_random=False),
)
def test_the_hit_is_the_longest_that_every_window_allows(
    windows: list[int], blocks: int, share: float, chance: st.DataObject
) -> None:
    rule = HitRule(windows=tuple(windows))
    held = {(window, at) for window in windows for at in range(blocks) if chance.random() < share}  # type: ignore[attr-defined]
    asked: list[tuple[int, int]] = []

    def look(window: int, at: int) -> bool:
        asked.append((window, at))
        return (window, at) in held

    assert hit_blocks(rule, blocks, look) == longest(rule, blocks, held)
    assert all(0 <= at < blocks for _, at in asked)


def test_windows_are_asked_again_until_all_of_them_agree() -> None:
    held = {(1, 0), (1, 3), (2, 0), (2, 1), (2, 2)}
    assert longest(HitRule(windows=(1, 2)), 4, held) == 1
    assert hit_blocks(HitRule(windows=(1, 2)), 4, lambda window, at: (window, at) in held) == 1


def test_a_window_beyond_what_reports_carry_is_not_understood() -> None:
    (longest,) = membership([CacheGroup(0, SLIDING, MAX_WINDOW_BLOCKS + 1)], 1).rule.windows
    assert longest == MAX_WINDOW_BLOCKS
    found = membership([CacheGroup(0, FULL), CacheGroup(1, SLIDING, MAX_WINDOW_BLOCKS + 2)], 1)
    assert found.unknown == "KV cache group 1 has a window of 65537 blocks, at most 65536 are followed"
    assert found.rule is PLAIN


def test_a_rule_that_needs_nothing_is_none() -> None:
    with pytest.raises(msgspec.ValidationError, match="windows: must not be empty where full is false"):
        msgspec.convert({"full": False, "windows": []}, HitRule)


def test_a_missing_window_is_skipped_by_its_length() -> None:
    asked: list[int] = []

    def look(_window: int, at: int) -> bool:
        asked.append(at)
        return False

    assert hit_blocks(HitRule(windows=(64,)), 1024, look) == 0
    assert len(asked) < 20


def test_a_windows_key_is_its_own_and_no_parent_stays_none() -> None:
    key = BlockKey(12345)
    assert len({key, *(window_key(key, window) for window in range(1, 100))}) == 100
    assert window_key(NO_PARENT, 5) == NO_PARENT
    assert window_key(key, 3) == 2092789425003151316


@pytest.mark.parametrize(
    ("groups", "rule"),
    [
        ([], PLAIN),
        ([CacheGroup(0)], PLAIN),
        ([CacheGroup(0, FULL), CacheGroup(1, "mla_attention")], PLAIN),
        ([CacheGroup(0, SLIDING, 1024)], HitRule(full=False, windows=(64,))),
        ([CacheGroup(0, SLIDING, 1026), CacheGroup(1, FULL)], HitRule(windows=(65,))),
        ([CacheGroup(0, FULL), CacheGroup(1, "mamba"), CacheGroup(2, SLIDING, 2)], HitRule(windows=(1,))),
        ([CacheGroup(0, FULL), CacheGroup(1, SLIDING, 1), CacheGroup(2, SLIDING, 512)], HitRule(windows=(1, 32))),
    ],
)
def test_what_a_hit_needs_follows_from_the_groups(groups: list[CacheGroup], rule: HitRule) -> None:
    members = membership(groups, 16)
    assert (members.rule, members.unknown) == (rule, "")


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (CacheGroup(1, "chunked_local_attention", 8192), "of the kind chunked_local_attention, whose hits"),
        (CacheGroup(1, "cross_attention"), "of the kind cross_attention"),
        (CacheGroup(1, "unknown"), "of the kind unknown"),
        (CacheGroup(1, SLIDING), "a sliding window of unknown length"),
        (CacheGroup(1, FULL, block_size=32), "blocks of 32 tokens, others of 16"),
    ],
)
def test_a_group_that_is_not_understood_is_named(group: CacheGroup, why: str) -> None:
    members = membership([CacheGroup(0, FULL), group], 16)
    assert members.unknown.startswith("KV cache group 1 ")
    assert why in members.unknown
    assert not members.full | dict(members.windows).keys()


def test_so_many_kinds_of_windows_are_followed() -> None:
    groups = [CacheGroup(at, SLIDING, 17 + 16 * at) for at in range(5)]
    assert membership(groups[:4], 16).unknown == ""
    assert "5 kinds of windows" in membership(groups, 16).unknown
