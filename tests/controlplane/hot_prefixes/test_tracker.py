"""What requests share is remembered, bounded; what is asked for most comes first; what is not any more fades."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.hot_prefixes.hot_prefix import HotBounds, Line
from cachefleet_controlplane.hot_prefixes.tracker import (
    ID_BYTES,
    PROMPT_BYTES,
    RETRY_SECONDS,
    HotPrefixes,
)
from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.tenancy import TenantId

BLOCK = 4
LINE = Line("default/m", "c", TenantId("acme"), "salt")
OTHER = Line("default/m", "c", TenantId("umbrella"), "pepper")
_LINES = {line: BlockKeyer(b"k" * 32, Namespace("c", line.salt), BLOCK) for line in (LINE, OTHER)}
TEXTS = st.lists(st.integers(0, 1), max_size=6).map(lambda bits: [number for bit in bits for number in [bit] * BLOCK])


class Asked:
    """Prefixes of prompts given as ids, their ids told as soon as they are wanted."""

    def __init__(self, **bounds: float) -> None:
        self.hot = HotPrefixes(HotBounds(**bounds))  # type: ignore[arg-type]
        self.now = 0.0

    def ask(self, ids: list[int], line: Line = LINE) -> None:
        wanted = self.hot.note(line, _LINES[line].packed_keys(ids), self.now)
        if wanted is not None:
            self.hot.learn(wanted.key, packed(ids[: wanted.blocks * BLOCK]))

    def hottest(self, *, line: Line = LINE, tokens: int = 1000, most: int = 100) -> list[list[int]]:
        found = self.hot.hottest(lambda one: one == line, self.now, tokens=tokens, most=most)
        assert [one.heat for one in found] == sorted((one.heat for one in found), reverse=True)
        return [list(array("I", one.ids)) for one in found]


def packed(ids: list[int]) -> bytes:
    return array("I", ids).tobytes()


def blocks(*numbers: int) -> list[int]:
    return [number for number in numbers for _ in range(BLOCK)]


def test_what_one_request_alone_asks_for_is_not_remembered() -> None:
    asked = Asked()
    asked.ask(blocks(1, 2, 3))
    asked.ask(blocks(7, 8, 9))
    assert asked.hottest() == []
    assert len(asked.hot) == 0


def test_a_prefix_ends_with_the_last_whole_block_that_two_requests_share() -> None:
    asked = Asked()
    asked.ask([*blocks(1, 2, 3), 5])
    asked.ask([*blocks(1, 2, 4), 5])
    assert asked.hottest() == [blocks(1, 2)]


def test_the_hottest_comes_first_whatever_came_first() -> None:
    asked = Asked()
    for _ in range(2):
        asked.ask(blocks(1, 2))
    for number in range(5):
        asked.ask(blocks(3, 4, 10 + number))
    assert asked.hottest() == [blocks(3, 4), blocks(1, 2)]
    assert asked.hottest(most=1) == [blocks(3, 4)]


def test_what_is_not_asked_for_any_more_fades() -> None:
    asked = Asked(half_life_seconds=10)
    for _ in range(8):
        asked.ask(blocks(1))
    asked.now = 50.0
    for _ in range(2):
        asked.ask(blocks(2))
    assert asked.hottest() == [blocks(2), blocks(1)]


def test_a_prefix_of_a_hotter_one_counts_once_in_the_bound_of_tokens() -> None:
    asked = Asked()
    for _ in range(5):
        asked.ask(blocks(1, 2))
    for _ in range(2):
        asked.ask(blocks(1, 2, 3))
    assert asked.hottest(tokens=3 * BLOCK) == [blocks(1, 2), blocks(1, 2, 3)]
    assert asked.hottest(tokens=2 * BLOCK) == [blocks(1, 2)]
    assert asked.hottest(tokens=BLOCK) == []
    assert asked.hottest(tokens=0) == []


def test_tenants_keep_apart_and_what_is_not_valid_any_more_goes() -> None:
    asked = Asked()
    for line in (LINE, OTHER):
        for _ in range(2):
            asked.ask(blocks(1, 2), line)
    assert asked.hottest() == asked.hottest(line=OTHER) == [blocks(1, 2)]
    before = asked.hot.size
    asked.hot.keep(lambda line: line == OTHER)
    assert asked.hottest() == []
    assert asked.hottest(line=OTHER) == [blocks(1, 2)]
    assert asked.hot.size == before - len(packed(blocks(1, 2)))


def test_ids_that_could_not_be_had_are_asked_for_again_later() -> None:
    hot, keys = HotPrefixes(HotBounds()), _LINES[LINE].packed_keys(blocks(1))
    assert hot.note(LINE, keys, 0.0) is None
    assert hot.note(LINE, keys, 1.0, fetch=False) is None
    assert hot.note(LINE, keys, 2.0) is not None
    assert hot.note(LINE, keys, 3.0) is None
    wanted = hot.note(LINE, keys, 2.0 + RETRY_SECONDS)
    assert wanted is not None
    assert wanted.blocks == 1


def conversation(number: int, turns: int) -> list[int]:
    """Its prompt, under a system prompt that all have."""
    return blocks(0, *(100 * number + turn for turn in range(1, turns + 1)))


def test_conversations_are_known_however_many_take_turns_and_stay_one_prefix_each() -> None:
    asked = Asked()
    for turns in range(1, 6):
        for number in range(1, 21):  # more than the prompts of one beginning that are compared
            asked.ask(conversation(number, turns))
    found = asked.hottest()
    assert found[0] == blocks(0)
    assert sorted(found[1:]) == sorted(conversation(number, 4) for number in range(1, 21))
    assert len(asked.hot) == 21


def test_what_others_ask_for_too_stays_when_a_conversation_goes_on() -> None:
    asked = Asked()
    for _ in range(5):
        asked.ask(blocks(1, 2))
    for turns in range(1, 4):
        asked.ask(blocks(1, 2, *range(7, 7 + turns)))
    assert asked.hottest() == [blocks(1, 2), blocks(1, 2, 7, 8)]


def test_of_one_that_has_grown_the_beginning_is_told_until_the_rest_is_learnt() -> None:
    hot, keyer = HotPrefixes(HotBounds()), _LINES[LINE]
    prompts = [conversation(1, turns) for turns in range(1, 5)]
    hot.note(LINE, keyer.packed_keys(prompts[0]), 0.0)
    wanted = hot.note(LINE, keyer.packed_keys(prompts[1]), 0.0)
    assert wanted is not None
    hot.learn(wanted.key, packed(prompts[0]))
    size = hot.size
    again = hot.note(LINE, keyer.packed_keys(prompts[2]), 1.0)
    assert again is not None
    assert again.blocks == 3
    hot.learn(again.key, b"")  # could not be had
    (told,) = hot.hottest(lambda _: True, 1.0, tokens=1000, most=9)
    assert told.ids == packed(prompts[0])
    assert told.heat > 2.9
    hot.learn(again.key, packed(prompts[1]))
    (told,) = hot.hottest(lambda _: True, 1.0, tokens=1000, most=9)
    assert told.ids == packed(prompts[1])
    assert hot.size == size + ID_BYTES * BLOCK + 8
    assert hot.note(LINE, keyer.packed_keys(prompts[1]), 1000.0) is None


def test_none_are_remembered_where_none_shall_be() -> None:
    asked = Asked(entries=0)
    for _ in range(3):
        asked.ask(blocks(1))
    assert (len(asked.hot), asked.hot.size) == (0, 0)


@given(
    st.lists(st.tuples(TEXTS, st.sampled_from([LINE, OTHER]), st.floats(0, 100)), max_size=80),
    st.integers(0, 6),
    st.integers(0, 6 * PROMPT_BYTES),
    st.integers(0, 100),
)
def test_bounds_hold_and_what_is_told_was_shared(
    asks: list[tuple[list[int], Line, float]], entries: int, size: int, tokens: int
) -> None:
    asked = Asked(entries=entries, bytes=size)
    seen: list[tuple[list[int], Line]] = []
    for ids, line, later in asks:
        asked.now += later
        asked.ask(ids, line)
        seen.append((ids, line))
        assert len(asked.hot) <= entries
        assert asked.hot.size <= size
    for line in (LINE, OTHER):
        told = asked.hottest(line=line, tokens=tokens)
        for ids in told:
            assert sum(one[: len(ids)] == ids for one, whose in seen if whose == line) >= 2
        distinct = {tuple(ids[:end]) for ids in told for end in range(BLOCK, len(ids) + 1, BLOCK)}
        assert len(distinct) * BLOCK <= tokens
        assert all(len(packed(ids)) % (BLOCK * ID_BYTES) == 0 for ids in told)
