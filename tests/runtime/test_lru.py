"""A bounded map against a plain list of what was used last."""

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_runtime.lru import LruMap

KEYS = st.integers(0, 5)


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from(["put", "use"]), KEYS), max_size=40))
def test_it_holds_what_was_used_last(limit: int, steps: list[tuple[str, int]]) -> None:
    found: LruMap[int, int] = LruMap(limit)
    expected: list[int] = []
    for number, (verb, key) in enumerate(steps):
        if verb == "use":
            assert (found.use(key) is not None) == (key in expected)
        else:
            found.put(key, number)
        if verb == "put" or key in expected:
            expected = [*(other for other in expected if other != key), key][-limit:]
        assert list(found) == expected


def test_what_is_not_there() -> None:
    assert LruMap[str, int](1).use("a") is None
