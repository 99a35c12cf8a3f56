"""The memory of parts: bounded, least recently used first, apart for each salt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_worker.plugin.tokens.token_cache import LARGEST_SHARE, Key, TokenCache, entry_bytes

IDS = (1, 2, 3)


def key(text: str, *, owner: int = 0, salt: str = "", anchored: bool = False) -> Key:
    return Key(owner, salt, anchored, text)


def entries(count: int) -> int:
    """Bytes of so many entries with a one-letter text."""
    return count * entry_bytes(key("a"), IDS)


def test_what_was_stored_is_found_under_all_it_depends_on() -> None:
    cache = TokenCache(entries(20))
    cache.store({key("a"): IDS})
    assert cache.find([key("a")]) == {key("a"): IDS}
    others = [key("b"), key("a", owner=1), key("a", salt="s"), key("a", anchored=True)]
    assert cache.find(others) == {}
    assert cache.stats()["part_hits"] == 1
    assert cache.stats()["part_misses"] == len(others)


def test_the_least_recently_used_goes_first() -> None:
    cache = TokenCache(entries(10))
    cache.store({key(letter): IDS for letter in "abcdefghij"})
    cache.find([key("a")])
    cache.store({key("k"): IDS})
    assert set(cache.find(map(key, "abk"))) == {key("a"), key("k")}
    assert cache.stats()["evicted"] == 1


def test_an_entry_too_large_for_the_whole_evicts_nothing() -> None:
    cache = TokenCache(entries(10))
    cache.store({key("a"): IDS})
    cache.store({key("b" * (entries(10) // LARGEST_SHARE)): IDS})
    assert set(cache.find([key("a")])) == {key("a")}
    assert cache.stats()["entries"] == 1


def test_one_tokenizer_is_forgotten_alone() -> None:
    cache = TokenCache(entries(10))
    cache.store({key("a", owner=1): IDS, key("a", owner=2): IDS})
    cache.forget(1)
    assert set(cache.find([key("a", owner=1), key("a", owner=2)])) == {key("a", owner=2)}
    assert cache.stats()["bytes"] == entry_bytes(key("a"), IDS)


@given(st.lists(st.tuples(st.text(max_size=40), st.integers(0, 20)), max_size=60), st.integers(1_000, 20_000))
def test_bytes_are_counted_exactly_and_stay_within_the_bound(stored: list[tuple[str, int]], bound: int) -> None:
    cache = TokenCache(bound)
    for text, count in stored:
        cache.store({key(text): tuple(range(count))})
        stats = cache.stats()
        held = cache.find(key(text) for text, _ in stored)
        assert stats["bytes"] == sum(entry_bytes(found, ids) for found, ids in held.items()) <= bound
        assert stats["entries"] == len(held)
