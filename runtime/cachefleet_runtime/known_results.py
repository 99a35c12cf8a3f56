"""Results of pure functions, cached by the identity of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

MAX_KNOWN: Final = 1024


def known_of_tuples(function: Callable[[Iterable[T]], R]) -> Callable[[Iterable[T]], R]:
    """The function with its result cached for each tuple object; values in the tuple never change.

    Of anything but a tuple it is computed each time. The last MAX_KNOWN tuples, at most, are kept with their results.
    """
    known: dict[int, tuple[Any, R]] = {}

    @wraps(function)
    def remembering(given: Iterable[T]) -> R:
        found = known.get(id(given))
        if found is not None and found[0] is given:
            return found[1]
        result = function(given)
        if type(given) is tuple:
            if len(known) >= MAX_KNOWN:
                known.clear()
            known[id(given)] = given, result
        return result

    return remembering
