"""All deaths of engines that a gateway has seen: whether an engine has ended, whose turn it is among suspects.

Nothing of a request is kept but a keyed digest of its body, and names: model, tenant, workers, its decision's id. What
is learnt here is this replica's own, and lost with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from bisect import insort
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from msgspec import Struct

from cachefleet_controlplane.gateway.engine_deaths.death_ledger import DeathLedger, FatalVerdict
from cachefleet_controlplane.metrics import Metrics
from cachefleet_runtime.lru import LruMap

logger = logging.getLogger(__name__)

PROBE_SECONDS: Final = 1.0
"""How long it may take to learn whether an engine has ended; one of which nothing is learnt counts as alive."""
TURN_SECONDS: Final = 30.0
"""How long a suspect waits for others that are tried by themselves."""
MAX_SUBJECTS: Final = 4096
_DIGEST_BYTES: Final = 16

Ended = Callable[[str, float], Coroutine[Any, Any, bool]]
"""Whether the engine at a URL has ended, within so many seconds."""


class Subject(Struct, frozen=True):
    """Whose a request is, for people: nothing of its content."""

    model: str
    tenant: str
    decision: str


class FatalRequest(Struct, frozen=True):
    """A request that is refused, for people."""

    subject: Subject
    workers: tuple[str, ...]
    seconds: int
    """For how long it is refused from now on."""


@dataclass(slots=True, order=True)
class _Waiter:
    arrived: float
    number: int
    turn: asyncio.Future[None] = field(compare=False)


class EngineDeaths:
    """``ended`` looks at an engine; ``serving`` says whether a worker, by full name, is ready and not told to go.

    ``clock`` is monotonic, in seconds.
    """

    def __init__(
        self,
        ended: Ended,
        serving: Callable[[str], bool],
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ended = ended
        self.serving = serving
        """Whether a worker's end would be unforeseen."""
        self._metrics = metrics
        self._clock = clock
        self._key = os.urandom(32)
        self._ledger = DeathLedger()
        self._probes: dict[str, asyncio.Task[bool]] = {}
        self._subjects: LruMap[bytes, tuple[Subject, tuple[str, ...]]] = LruMap(MAX_SUBJECTS)
        self._trial: object | None = None
        """The request that is tried by itself."""
        self._waiters: list[_Waiter] = []
        self._numbers = 0

    @property
    def empty(self) -> bool:
        """Nothing is suspected, as nearly always: no request need be looked at."""
        return self._ledger.empty

    def digest(self, endpoint: str, body_hash: int) -> bytes:
        """Return a request's digest, of the hash of its body that ``hash`` gives in this process."""
        return blake2b(f"{endpoint} {body_hash}".encode(), key=self._key, digest_size=_DIGEST_BYTES).digest()

    async def died(self, url: str) -> bool:
        """Look whether an engine has ended; those who ask at the same time share one look."""
        probe = self._probes.get(url)
        if probe is None:
            probe = self._probes[url] = asyncio.create_task(self._ended(url, PROBE_SECONDS))
            probe.add_done_callback(lambda _: self._probes.pop(url, None))
        return await asyncio.shield(probe)

    def lost(self, worker: str, digest: bytes, *, began: float, produced: bool) -> None:
        """Note a request that was lost with its engine, unforeseen."""
        now = self._clock()
        if self._ledger.lost(worker, digest, began=began, produced=produced, now=now):
            self._metrics.engine_death()
            logger.warning("an engine ended while it answered requests", extra={"worker": worker})
        self._wake()

    def answered(self, digest: bytes, *, whole: bool) -> None:
        """Note that an engine has given a request's first token, or all of its answer."""
        self._ledger.answered(digest, whole=whole, now=self._clock())
        self._wake()

    async def verdict(self, digest: bytes, subject: Subject) -> FatalVerdict:
        """Whether a request may be sent; where it is suspected, once all is known of the last death."""
        verdict = self._ledger.verdict(digest, self._clock())
        while verdict is not FatalVerdict.FREE and (seconds := self._ledger.unsettled(self._clock())):
            await asyncio.sleep(seconds)
            verdict = self._ledger.verdict(digest, self._clock())
        if verdict is FatalVerdict.FATAL and self._subjects.get(digest) is None:
            self._found(digest, subject)
        return verdict

    def _found(self, digest: bytes, subject: Subject) -> None:
        workers = self._ledger.workers(digest)
        self._subjects.put(digest, (subject, workers))
        self._metrics.fatal_request("found")
        logger.warning(
            "a request was in flight when two engines ended; it is refused for a while",
            extra={"model": subject.model, "tenant": subject.tenant, "decision": subject.decision}
            | {"workers": ", ".join(workers)},
        )

    async def turn(self, digest: bytes, subject: Subject, holder: object, *, arrived: float) -> FatalVerdict:
        """Wait until a request may be sent, TURN_SECONDS at most: FREE, also for a doubtful one whose turn it is.

        A ``holder`` has its turn until ``leave``; those that came first go first.
        """
        while (verdict := await self.verdict(digest, subject)) is FatalVerdict.DOUBTFUL and self._trial is not holder:
            if self._trial is None and self._first(arrived):
                self._trial = holder
                return FatalVerdict.FREE
            if not await self._wait(arrived):
                return verdict
        return FatalVerdict.FREE if verdict is FatalVerdict.DOUBTFUL else verdict

    def leave(self, holder: object) -> None:
        """End a turn; nothing where it is somebody else's."""
        if self._trial is holder:
            self._trial = None
            self._wake()

    def refused(self) -> tuple[FatalRequest, ...]:
        """The requests that are refused now."""
        left = self._ledger.refused(self._clock())
        shown = ((self._subjects.get(digest), seconds) for digest, seconds in left.items())
        return tuple(FatalRequest(*known, max(1, round(seconds))) for known, seconds in shown if known is not None)

    def _first(self, arrived: float) -> bool:
        return not self._waiters or arrived <= self._waiters[0].arrived

    async def _wait(self, arrived: float) -> bool:
        """Wait until something has changed; whether it has in time."""
        self._numbers += 1
        waiter = _Waiter(arrived, self._numbers, asyncio.get_running_loop().create_future())
        insort(self._waiters, waiter)
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await waiter.turn
        except TimeoutError:
            return False
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return True

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.turn.done():
                waiter.turn.set_result(None)
