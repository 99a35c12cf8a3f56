"""Scores of a decision that are computed only if somebody looks at them, and which of them are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import nsmallest
from typing import Final, overload

from cachefleet_controlplane.routing.decision import CandidateScore

LEADING: Final = 8
"""Candidates kept with a decision: all of a large fleet would cost more than the decision."""


class LaterScores(Sequence[CandidateScore]):
    """``count`` scores that are computed when one of them is first read."""

    def __init__(self, count: int, make: Callable[[], Sequence[CandidateScore]]) -> None:
        self._count = count
        self._make: Callable[[], Sequence[CandidateScore]] | None = make
        self._made: Sequence[CandidateScore] = ()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> CandidateScore: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[CandidateScore]: ...
    def __getitem__(self, place: int | slice) -> CandidateScore | Sequence[CandidateScore]:
        return self._all()[place]

    def __iter__(self) -> Iterator[CandidateScore]:
        return iter(self._all())

    def _all(self) -> Sequence[CandidateScore]:
        make = self._make
        if make is not None:  # two threads may both make them: they are the same
            self._made = make()
            self._make = None
        return self._made


def leading_places(known: Sequence[tuple[int, int]], first: int, second: int | None) -> list[int]:
    """Positions of the candidates to keep with a decision, at most LEADING.

    The chosen and the second best one, then those that hold most of the prompt, less busy ones first. ``known`` are the
    matched blocks and the requests of each.
    """
    best, ranked = [first] if second is None else [first, second], [(-held, requests) for held, requests in known]
    order = nsmallest(LEADING, range(len(known)), key=ranked.__getitem__)
    return (best + [place for place in order if place not in best])[:LEADING]
