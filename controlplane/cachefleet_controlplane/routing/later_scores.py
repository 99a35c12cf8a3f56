"""Scores of a decision that are made of native ones only if somebody looks at them, and encoded without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import CandidateScore


class LaterScores(Sequence[CandidateScore]):
    """``count`` scores that ``make`` gives when one of them is first read.

    ``encode`` gives the JSON of their ``CandidateRecord``s for a block size and the chosen worker's id.
    """

    def __init__(
        self,
        count: int,
        make: Callable[[], Sequence[CandidateScore]],
        encode: Callable[[int, WorkerId], bytes] | None = None,
    ) -> None:
        self.encode = encode
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
