"""A workload through one policy in virtual time: a heap of events, the real Fleet and index, and modelled workers.

Frames reach the control plane ``report_lag`` after their step, in order; a State is sent each ``state_every``, each
worker at its own moment, except in long pauses. Requests of one instant come one after the other, before any worker
begins a step on them. One that has to wait for room is tried again, first come first served, whenever anything has
happened.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.index.frame_ingest import read
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.run_result import Result, SimulationError
from cachefleet_core.report_frames import DownFrame, Hello, Policy

START: Final = 1000.0
"""Virtual time at which the workload begins, in seconds."""
IDLE_REPORTS: Final = 10
"""Of each worker before a request that comes when nothing is under way; before these none are made while it is so."""


class Arrival(Protocol):
    """A request of a workload; ``at`` is seconds after its beginning."""

    @property
    def number(self) -> int: ...
    @property
    def at(self) -> float: ...


class Under(Protocol):
    """A request under way, as an ``InFlightRequest`` is."""

    def first_token(self) -> None: ...
    def finish(self, *, cached_tokens: int | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Placed:
    """A request's worker; ``predicted`` tokens of it are cached there, as far as the index knows."""

    worker: str
    under: Under
    predicted: int = 0


class Unplaced(Enum):
    """Why a request goes to no worker: not yet, or never."""

    WAITS = "waits"
    REFUSED = "refused"


R = TypeVar("R", bound=Arrival)
G = TypeVar("G")
S = TypeVar("S")


class ModelledWorker(Protocol[G, S]):
    """An engine with its agent. Its caller alternates ``begin`` and ``end``, the returned seconds apart."""

    name: str
    stepping: bool

    @property
    def busy(self) -> bool: ...
    def opening(self) -> list[bytes]: ...
    def add(self, generation: G) -> None: ...
    def begin(self, now: float, /) -> tuple[S, float]: ...
    def end(self, step: S, now: float, /) -> tuple[list[G], list[bytes]]: ...
    def state(self) -> bytes: ...


W = TypeVar("W", bound=ModelledWorker[Any, Any])


@dataclass(frozen=True, slots=True)
class Opened(Generic[R]):
    """A request that was sent to a worker."""

    request: R
    placed: Placed


class VirtualRun(ABC, Generic[R, G, W]):
    """One run; ``run`` once. Subclasses make the fleet and the workers, place requests and judge answers."""

    _fleet: Fleet
    _workers: Mapping[str, W]
    result: Result

    def __init__(self, requests: Sequence[R], setup: Setup) -> None:
        self._requests = requests
        self._setup = setup
        self._now = START
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = 0
        self._arrivals = sorted(request.at for request in requests)
        self._came = 0
        self._arrived: deque[R] = deque()
        self._open: dict[G, Opened[R]] = {}
        self._answered: set[int] = set()

    def join(self, fleet: Fleet, workers: Mapping[str, W]) -> None:
        """Connect the workers; before ``run``."""
        self._fleet = fleet
        self._workers = workers
        self._connections = {name: fleet.connect(_Link()) for name in workers}

    def run(self) -> Result:
        """SimulationError where anything is not as it must be."""
        for request in self._requests:
            self._at(START + request.at, self._arrive, request)
        for place, worker in enumerate(self._workers.values()):
            for frame in worker.opening():
                self._deliver(worker, frame)
            self._at(START + place * self._setup.state_every / len(self._workers), self._report, worker)
        while self._heap:
            self._now, _, act, given = heapq.heappop(self._heap)
            act(*given)
            if self._arrived:
                self._place()
        if not self._over or self._open or self._arrived:
            raise SimulationError(f"{len(self._answered)} of {len(self._requests)} requests were answered")
        self._check()
        return self.result

    @abstractmethod
    def _placed(self, request: R) -> tuple[Placed, G] | Unplaced:
        """Where a request goes now, and what its worker gets."""

    @abstractmethod
    def _began(self, generation: G) -> bool:
        """Whether it has just got its first token."""

    @abstractmethod
    def _ended(self, worker: W, generation: G, opened: Opened[R], /) -> bool:
        """Whether it is over; counts it then, and ends ``opened.placed.under``."""

    @abstractmethod
    def _check(self) -> None:
        """All were answered. SimulationError where something is wrong."""

    @property
    def _over(self) -> bool:
        return len(self._answered) == len(self._requests)

    def _at(self, moment: float, act: Callable[..., None], *given: Any) -> None:
        self._numbers += 1
        heapq.heappush(self._heap, (moment, self._numbers, act, given))

    def _arrive(self, request: R) -> None:
        self._arrived.append(request)
        self._came += 1
        self._place()

    def _place(self) -> None:
        while self._arrived:
            request = self._arrived[0]
            found = self._placed(request)
            if found is Unplaced.WAITS:
                return
            self._arrived.popleft()
            if isinstance(found, Unplaced):
                self._answered.add(request.number)
            else:
                self._send(request, *found)

    def _send(self, request: R, placed: Placed, generation: G) -> None:
        worker = self._workers[placed.worker]
        self._open[generation] = Opened(request, placed)
        worker.add(generation)
        if not worker.stepping:
            worker.stepping = True
            self._at(self._now, self._begin, worker)

    def _begin(self, worker: W) -> None:
        step, seconds = worker.begin(self._now)
        self._at(self._now + seconds, self._end, worker, step)

    def _end(self, worker: W, step: Any) -> None:
        advanced, frames = worker.end(step, self._now)
        for frame in frames:
            self._at(self._now + self._setup.report_lag, self._deliver, worker, frame)
        for generation in advanced:
            self._advanced(worker, generation)
        if worker.busy:
            self._begin(worker)

    def _advanced(self, worker: W, generation: G) -> None:
        opened = self._open[generation]
        if self._began(generation):
            opened.placed.under.first_token()
            self.result.first_token[opened.request.number] = self._now - (START + opened.request.at)
        if self._ended(worker, generation, opened):
            del self._open[generation]
            self._answered.add(opened.request.number)

    def _report(self, worker: W) -> None:
        self._at(self._now + self._setup.report_lag, self._deliver, worker, worker.state())
        if not self._over:
            self._at(self._next_report(), self._report, worker)

    def _next_report(self) -> float:
        """A period from now; where nothing is under way, shortly before the next request."""
        every = self._setup.state_every
        later = self._now + every
        if self._open or self._arrived:
            return later
        periods = int((START + self._arrivals[self._came] - later) / every)
        return later + every * max(0, periods - IDLE_REPORTS)

    def _deliver(self, worker: W, data: bytes) -> None:
        frame, connection = read(data), self._connections[worker.name]
        if isinstance(frame, Hello):
            self._fleet.hello(connection, frame)
        else:
            self._fleet.receive(connection, frame)


class _Link:
    """The way back to an agent: a stream without loss needs none."""

    def send(self, frame: DownFrame) -> None:
        if not isinstance(frame, Policy):
            raise SimulationError(f"the control plane asked for something: {frame}")

    def close(self, code: str, reason: str) -> None:
        raise SimulationError(f"the control plane closed a connection: {code}, {reason}")
