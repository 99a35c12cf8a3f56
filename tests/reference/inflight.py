"""Requests of this replica in flight to a worker that the worker's report does not show yet.

A request's uncached tokens count as work until its first token, at most UNCACHED_WORK_SECONDS. Its prompt's blocks are
expected on the worker from the time it is sent: for EXPECTED_SECONDS, or as long as it is being prefilled. So a burst
of one prompt goes to one worker, and so do the turns of a conversation, without waiting for reports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from types import TracebackType
from typing import Final, Self

from tests.reference.reservations import BlockReservations, Reservation, shared_blocks

EXPECTED_SECONDS: Final = 2.0
UNCACHED_WORK_SECONDS: Final = 30.0
MAX_EXPECTED: Final = 256
"""Prompts kept for each worker."""
TYPICAL_TOKENS: Final = 512
"""Prompt length assumed until some were seen."""
_SMOOTHING: Final = 0.1


class InFlightRequest:
    """One request in flight to a worker; a context manager that finishes it."""

    __slots__ = (
        *(
            "_clock",
            "_ended",
            "_inflight_requests",
            "blocks",
            "reservation",
            "common",
            "done",
            "keys",
            "over",
            "prefilled",
            "sent_at",
            "sequences",
        ),
        *("taken", "tokens"),
    )

    def __init__(
        self,
        inflight_requests: InFlightRequests,
        clock: Callable[[], float],
        *,
        keys: bytes,
        tokens: int,
        blocks: int,
        taken: int | None = None,
        common: bytes = b"",
        sequences: int = 1,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """``tokens`` have to be computed.

        It is of so many ``sequences``, and needs ``blocks``, of which it takes ``taken`` out of the free ones (all by
        default), and may share those with the keys ``common``. ``ended`` is called once it is over.
        """
        self._inflight_requests = inflight_requests
        self._clock = clock
        self._ended = ended
        self.keys = keys
        self.tokens = tokens
        self.blocks = blocks
        self.taken = blocks if taken is None else taken
        self.common = common
        self.sequences = sequences
        self.reservation: Reservation | None = None
        self.sent_at = clock()
        self.prefilled = False
        self.done = False
        self.over: int | None = None
        """How many Deltas had come when it was over."""

    def first_token(self) -> None:
        """The worker has prefilled the prompt."""
        if not self.prefilled:
            self.prefilled = True
            self._inflight_requests.landed(self)

    def finish(self, *, cached_tokens: int | None = None) -> None:
        """The request is over; ``cached_tokens`` is what the engine says it served from cache. Idempotent."""
        if not self.done:
            self.done = True
            self._inflight_requests.close(self, cached_tokens)
            self._ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.finish()

    def working(self, now: float) -> bool:
        """Whether its prompt still has to be computed, as far as is known."""
        return not (self.done or self.prefilled) and now - self.sent_at < UNCACHED_WORK_SECONDS

    def expected(self, now: float) -> bool:
        """Whether its prompt's blocks count as held by the worker though no report shows them."""
        return self.working(now) or now - self.sent_at < EXPECTED_SECONDS

    def coming(self, now: float, deltas: int) -> bool:
        """Whether they will be there before those of a request that is sent now, after so many Deltas."""
        return self.expected(now) and self.over in {None, deltas}


@dataclass(slots=True)
class InFlightRequests:
    """All in-flight requests of one worker."""

    answered: Callable[[], None]
    """Called when a request got its first token or its end from the engine."""
    changed: Callable[[], None]
    """Called when what is counted here has changed."""
    open: dict[int, InFlightRequest] = field(default_factory=dict)
    """In the order in which they were sent."""
    sequences: int = 0
    """Answers that all of them ask for: an engine counts each as a request."""
    computing: dict[int, InFlightRequest] = field(default_factory=dict)
    """Those of them without a first token."""
    recent: deque[InFlightRequest] = field(default_factory=lambda: deque(maxlen=MAX_EXPECTED))
    typical_tokens: float = TYPICAL_TOKENS
    reservations: BlockReservations = field(default_factory=BlockReservations)
    ended_blocks: int = 0
    """Blocks needed by requests that ended since the worker's last report."""
    deltas: int = 0
    """Changes of its blocks that the worker has told."""

    def begin(self, inflight: InFlightRequest, *, prompt_tokens: int, held: int = 0) -> None:
        """A request is sent; ``held`` blocks of its prompt are there according to the index."""
        self.changed()
        self.open[id(inflight)] = self.computing[id(inflight)] = inflight
        self.sequences += inflight.sequences
        inflight.reservation = self.reservations.take(inflight.common, blocks=inflight.blocks, held=held)
        if inflight.keys:
            self.recent.append(inflight)
        if prompt_tokens:
            self.typical_tokens += _SMOOTHING * (prompt_tokens - self.typical_tokens)

    def landed(self, inflight: InFlightRequest) -> None:
        """A request has its first token: its blocks are there, and others may share them."""
        self.changed()
        self.computing.pop(id(inflight), None)
        if not inflight.done:
            if inflight.reservation is not None:
                self.reservations.computed(inflight.reservation, inflight.common)
            self.answered()

    def close(self, inflight: InFlightRequest, cached_tokens: int | None) -> None:
        """A request is over; without ``cached_tokens`` and a first token it failed, and its blocks are not expected."""
        self.changed()
        if self.open.pop(id(inflight), None) is not None:
            self.sequences -= inflight.sequences
        self.computing.pop(id(inflight), None)
        inflight.over = self.deltas
        if inflight.reservation is not None:
            self.reservations.drop(inflight.reservation)
            self.ended_blocks += inflight.blocks
        if cached_tokens is not None:
            self.answered()
        elif not inflight.prefilled and inflight in self.recent:
            self.recent.remove(inflight)  # it failed: its blocks will not come

    def due(self) -> Iterator[float]:
        """The times at which requests stop counting as work if they get no first token."""
        return (inflight.sent_at + UNCACHED_WORK_SECONDS for inflight in self.computing.values())

    def tokens(self, now: float) -> int:
        """Prompt tokens sent and not computed yet."""
        return sum(inflight.tokens for inflight in self.computing.values() if inflight.working(now))

    def blocks_since(self, moment: float) -> int:
        """Free blocks that requests sent after ``moment`` take."""
        return sum(inflight.taken for inflight in takewhile(lambda one: one.sent_at > moment, self._latest()))

    def _latest(self) -> Iterator[InFlightRequest]:
        return reversed(self.open.values())

    def waiting(self, now: float) -> int:
        """Number of sequences whose prompt still has to be computed."""
        return sum(inflight.sequences for inflight in self.computing.values() if inflight.working(now))

    def match(self, keys: bytes, now: float, *, whole: bool = False, coming: bool = False) -> int:
        """The longest prefix, in blocks, that ``keys`` share with a prompt whose blocks are expected there.

        ``whole``: only with prompts that they go on from, as windows are kept at a prompt's end alone. ``coming``: only
        with prompts whose blocks will be there in time.
        """
        while self.recent and not self.recent[0].expected(now):
            self.recent.popleft()
        counted = [one for one in self.recent if (one.coming(now, self.deltas) if coming else one.expected(now))]
        if whole:
            prompts = (inflight.common for inflight in counted)
            return max((len(common) // 8 for common in prompts if keys.startswith(common)), default=0)
        best, start, wanted = 0, 0, keys[:8]
        for inflight in counted:
            # Most share no more than what was found already, and there may be many.
            if inflight.keys[start : start + 8] == wanted:
                best = shared_blocks(keys, inflight.keys, at_least=best)
                start = 8 * best
                wanted = keys[start : start + 8]
                if not wanted:
                    break
        return best
