"""Results that are remembered."""

from cachefleet_runtime.known_results import MAX_KNOWN, known_of_tuples


def test_a_tuple_is_asked_about_once_and_other_values_each_time() -> None:
    asked = []

    @known_of_tuples
    def total(values: object) -> int:
        asked.append(values)
        assert isinstance(values, tuple | list)
        return sum(values)

    same, listed = (1, 2), [1, 2]
    assert [total(same), total(same), total(listed), total(listed)] == [3] * 4
    assert asked == [same, listed, listed]
    listed.append(5)
    assert total(listed) == 8


def test_it_keeps_what_it_remembers_bounded_and_alive() -> None:
    @known_of_tuples
    def first(values: object) -> int:
        assert isinstance(values, tuple)
        return int(values[0])

    # Tuples made on the way are given up at once: were their identities used again, answers would be wrong.
    assert [first((number, "x")) for number in range(3 * MAX_KNOWN)] == list(range(3 * MAX_KNOWN))
