"""Scores of a decision that are made of native ones only if somebody looks at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from cachefleet_controlplane.routing.decision import CandidateScore


class LaterScores(Sequence[CandidateScore]):
    """``count`` scores that ``make`` gives when one of them is first read."""

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
