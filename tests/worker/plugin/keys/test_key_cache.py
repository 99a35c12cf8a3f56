from __future__ import annotations

import random
import threading
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.block_keys import BlockKeyer, Namespace, pack_keys
from cachefleet_core.native import Code, native_code
from cachefleet_worker.plugin.keys.key_cache import CHUNK_TOKENS, KeyCache, TokenIdError
from tests.core.codes import over_both

INDEX_KEY = bytes(32)
HERE = Namespace("sha256:c", "tenant")


def plain(ids: list[int], block_size: int, namespace: Namespace = HERE, lookahead: int = 0) -> bytes:
    return pack_keys(BlockKeyer(INDEX_KEY, namespace, block_size, lookahead).keys(ids))


def prompt(seed: int, tokens: int) -> list[int]:
    return random.Random(seed).choices(range(150_000), k=tokens)


@over_both
@given(
    turns=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1300), st.integers(0, 1300)), min_size=1, max_size=8),
    block_size=st.sampled_from([1, 3, 16, 32, 128, 500, 600]),
    max_bytes=st.sampled_from([1, 8000, 10**6]),
    lookaheads=st.lists(st.sampled_from([0, 1, 5]), min_size=8, max_size=8) | st.sampled_from([[0] * 8, [1] * 8]),
)
def test_keys_are_the_keyers_whatever_was_asked_before(
    code: Code, turns: list[tuple[int, int, int]], block_size: int, max_bytes: int, lookaheads: list[int]
) -> None:
    cache = KeyCache(INDEX_KEY, max_bytes=max_bytes, code=code)
    for (seed, shared, own), lookahead in zip(turns, lookaheads, strict=False):
        ids = prompt(seed, shared) + prompt(seed + 100 + own, own)
        form = array("I", ids) if own % 2 else ids
        expected = plain(ids, block_size, lookahead=lookahead)
        assert cache.keys(HERE, block_size, form, lookahead=lookahead) == expected
        assert cache.stats()["bytes"] <= max_bytes


def test_a_shared_beginning_is_hashed_once() -> None:
    cache = KeyCache(INDEX_KEY, max_bytes=10**7)
    first = prompt(1, 20 * CHUNK_TOKENS)
    cache.keys(HERE, 32, first)
    assert (cache.hits, cache.misses) == (0, 20)
    longer = first + prompt(2, 700)
    assert cache.keys(HERE, 32, longer) == plain(longer, 32)
    assert (cache.hits, cache.misses) == (20, 22)


def test_of_what_native_code_hashes_nothing_is_remembered() -> None:
    cache = KeyCache(INDEX_KEY, max_bytes=10**7, code=native_code())
    ids = prompt(1, 3 * CHUNK_TOKENS)
    for _ in range(2):
        assert cache.keys(HERE, 32, ids) == plain(ids, 32)
    assert set(cache.stats().values()) == {0}


@over_both
def test_namespaces_and_block_sizes_share_nothing(code: Code) -> None:
    cache = KeyCache(INDEX_KEY, max_bytes=10**7, code=code)
    ids = prompt(1, 2 * CHUNK_TOKENS)
    for namespace in (HERE, Namespace("sha256:c", "other"), Namespace("sha256:c", "tenant", "lora")):
        for block_size in (16, 32):
            assert cache.keys(namespace, block_size, ids) == plain(ids, block_size, namespace)
    assert cache.hits == 0


def test_memory_is_bounded_and_the_least_used_goes() -> None:
    cache = KeyCache(INDEX_KEY, max_bytes=30_000)
    kept = prompt(0, CHUNK_TOKENS)
    cache.keys(HERE, 32, kept)
    for seed in range(1, 50):
        cache.keys(HERE, 32, prompt(seed, CHUNK_TOKENS))
        hits = cache.hits
        cache.keys(HERE, 32, kept)
        assert cache.hits == hits + 1
    assert cache.stats()["bytes"] <= 30_000
    assert cache.stats()["chunks"] < 14


@over_both
def test_namespaces_are_bounded(code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachefleet_worker.plugin.keys.key_cache.NAMESPACES", 2)
    cache = KeyCache(INDEX_KEY, max_bytes=10**6, code=code)
    ids = prompt(1, CHUNK_TOKENS)
    for _ in range(2):
        for salt in "abc":
            assert cache.keys(Namespace("c", salt), 32, ids) == plain(ids, 32, Namespace("c", salt))
    assert len(cache._keyers) == 2


@over_both
def test_several_threads_may_ask_at_once(code: Code) -> None:
    cache = KeyCache(INDEX_KEY, max_bytes=20_000, code=code)
    right: list[bool] = []

    def ask(seed: int) -> None:
        for turn in range(20):
            ids = prompt(seed % 2, 2000) + prompt(seed + turn, 100)
            right.append(cache.keys(HERE, 32, ids) == plain(ids, 32))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 80


@over_both
@pytest.mark.parametrize("ids", [[-1] * 32, [1 << 32] * 32, [0.5] * 32, [1] * 32 + [-1]])
def test_ids_that_are_none_are_refused(code: Code, ids: list[int]) -> None:
    with pytest.raises(TokenIdError, match="token ids must be integers from 0 to 4294967295"):
        KeyCache(INDEX_KEY, max_bytes=1, code=code).keys(HERE, 32, ids)
