"""Requests of other replicas in flight to a worker, as their Loads tell of them: ``native/src/plane/sharing.rs``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cachefleet_core.report_fields import Flight
from cachefleet_core.report_frames import SharedLoad
from tests.reference.inflight import InFlightRequest, InFlightRequests
from tests.reference.reservations import shared_blocks

SILENT_SECONDS: Final = 3.0
"""How long a replica's requests count after it was heard last."""


def _nobody() -> None:
    """Callback that nobody needs."""


@dataclass
class Heard:
    """What a Load tells that a report before may have counted as that of unknown senders."""

    tokens: int = 0
    waiting: int = 0
    sequences: int = 0
    begun: int = 0


@dataclass
class Peer:
    """One replica's requests; of each the flight by which it was told first."""

    heard_at: float
    flights: InFlightRequests = field(default_factory=lambda: InFlightRequests(_nobody, _nobody))
    known: dict[int, tuple[Flight, InFlightRequest]] = field(default_factory=dict)
    expected: list[tuple[Flight, InFlightRequest]] = field(default_factory=list)

    def hear(self, load: SharedLoad, reported_at: float, now: float) -> Heard:
        """Take a Load over."""
        self.heard_at, heard = now, Heard()
        for flight in load.flights:
            if flight.number not in self.known:
                self._begin(flight, reported_at, now, heard)
            if not flight.computing:
                self.known[flight.number][1].first_token()
        for number in load.failed:
            self._end(number, failed=True)
        named = {flight.number for flight in load.flights}
        for number in [*load.ended, *(set(self.known) - named if load.whole else ())]:
            self._end(number, failed=False)
        return heard

    def _begin(self, flight: Flight, reported_at: float, now: float, heard: Heard) -> None:
        sent_at = now - flight.age
        request = InFlightRequest(
            self.flights,
            lambda: sent_at,
            keys=b"",
            tokens=flight.tokens,
            sequences=flight.sequences,
            blocks=flight.blocks,
            taken=flight.taken,
            common=flight.keys[: 8 * flight.common],
        )
        self.flights.begin(request, prompt_tokens=0)
        self.known[flight.number] = flight, request
        if flight.keys:
            self.expected.append((flight, request))
        heard.begun += 1
        if sent_at <= reported_at:
            heard.tokens += flight.tokens if flight.computing else 0
            heard.waiting += flight.sequences if flight.computing else 0
            heard.sequences += flight.sequences

    def _end(self, number: int, *, failed: bool) -> None:
        if number not in self.known:
            return
        _, request = self.known.pop(number)
        if failed and not request.prefilled:
            self.expected = [one for one in self.expected if one[1] is not request]
        request.finish(cached_tokens=0)

    def match(self, keys: bytes, now: float, *, whole: bool, coming: bool = False) -> int:
        """The longest prefix, in blocks, that ``keys`` share with a prompt whose blocks are expected there."""
        best = 0
        for flight, request in self.expected:
            rest, theirs = keys[8 * flight.skip :], flight.keys[: 8 * flight.common] if whole else flight.keys
            if not (request.coming(now, self.flights.deltas) if coming else request.expected(now)):
                continue
            if whole and theirs and rest.startswith(theirs):
                best = max(best, flight.skip + len(theirs) // 8)
            if not whole and rest[:8] == theirs[:8] != b"":
                best = max(best, flight.skip + shared_blocks(rest, theirs))
        return best
