"""The loads of workers in plain Python, and a fleet that keeps them beside the native ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from cachefleet_native import InFlightRequest as NativeRequest
from cachefleet_native import WorkerRow
from msgspec.structs import replace

from cachefleet_controlplane.fleet.agent_connection import Connection
from cachefleet_controlplane.index.frame_ingest import Report
from cachefleet_controlplane.index.worker_id import worker_id
from cachefleet_controlplane.report_streams.report_stream import FORGET_SECONDS, StreamEvent
from cachefleet_controlplane.routing.decision import Decision, Prompt
from cachefleet_controlplane.routing.hit_trust import trust_in
from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES, needed_blocks, usable_blocks
from cachefleet_controlplane.routing.worth import Worth
from cachefleet_controlplane.workers.load import WorkerLoad
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.block_keys import unpack_keys
from cachefleet_core.report_fields import Flight
from cachefleet_core.report_frames import Delta, Hello, Loads, SharedLoad, Snapshot, State
from tests.controlplane.fleets import LiveFleet
from tests.reference.adapter_loading import adapter_seconds
from tests.reference.candidate_view import CandidateView
from tests.reference.capacity import Capacity
from tests.reference.inflight import InFlightRequest, InFlightRequests
from tests.reference.reservations import BlockReservations
from tests.reference.sharing import SILENT_SECONDS, Heard, Peer

SAMPLES_NEEDED = 3
"""Reports with a prefill rate that are needed before it is used."""


def _nobody() -> None:
    """Callback that nobody needs."""


@dataclass
class WorkerLoads:
    """What was sent to one worker, and what of its last report others caused."""

    own: InFlightRequests = field(default_factory=lambda: InFlightRequests(_nobody, _nobody))
    others_tokens: int = 0
    others_requests: int = 0
    samples: int = 0
    last_used: int = 0
    peers: dict[str, Peer] = field(default_factory=dict)
    """Requests of other replicas, by their names."""

    def all(self, now: float) -> list[InFlightRequests]:
        """Requests of this replica and of all that are heard."""
        self.peers = {name: peer for name, peer in self.peers.items() if now - peer.heard_at < SILENT_SECONDS}
        return [self.own, *(peer.flights for peer in self.peers.values())]

    def tokens(self, now: float) -> int:
        """Prompt tokens sent and not computed yet."""
        return sum(flights.tokens(now) for flights in self.all(now))

    def sequences(self, now: float) -> int:
        """Answers that all requests ask for."""
        return sum(flights.sequences for flights in self.all(now))

    def match(self, keys: bytes, now: float, *, whole: bool, coming: bool = False) -> int:
        """Blocks of a prompt that are expected there, or will be there in time."""
        self.all(now)
        others = (peer.match(keys, now, whole=whole, coming=coming) for peer in self.peers.values())
        return max((self.own.match(keys, now, whole=whole, coming=coming), *others))

    def changed(self) -> None:
        """A Delta or a part of a snapshot was received."""
        for flights in (self.own, *(peer.flights for peer in self.peers.values())):
            flights.deltas += 1

    def hear(self, load: SharedLoad, worker: Worker, now: float) -> Heard:
        """Another replica told of its requests."""
        self.all(now)
        load = replace(load, flights=tuple(self._shortened(flight, now) for flight in load.flights))
        peer = self.peers.setdefault(load.origin, Peer(now))
        heard = peer.hear(load, worker.load.at if worker.load else -1e9, now)
        if worker.load:
            told = worker.load.state.waiting_tokens is not None
            tokens = heard.tokens if told else round(heard.waiting * self.own.typical_tokens)
            self.others_tokens = max(0, self.others_tokens - tokens)
            self.others_requests = max(0, self.others_requests - heard.sequences)
        return heard

    def _shortened(self, flight: Flight, now: float) -> Flight:
        """A flight without the tokens of blocks that are expected there of others."""
        keys = [*range(flight.skip), *unpack_keys(flight.keys)]
        chains = [(0, unpack_keys(one.keys)) for one in self.own.recent if one.expected(now)]
        for peer in self.peers.values():
            known = ((told.skip, unpack_keys(told.keys)) for told, one in peer.expected if one.expected(now))
            chains += known
        under_way = max((_agreement(keys, flight.skip, *chain) for chain in chains), default=0)
        tokens = max(0, flight.tokens - 16 * max(0, under_way - flight.skip))
        return replace(flight, tokens=tokens) if flight.keys else flight

    def accept(self, state: State, now: float) -> None:
        """A State was taken over."""
        known = self.all(now)
        others = max(0, state.waiting - sum(flights.waiting(now) for flights in known))
        self.others_tokens = (
            max(0, min(1 << 48, state.waiting_tokens) - self.tokens(now))
            if state.waiting_tokens is not None
            else round(others * self.own.typical_tokens)
        )
        self.others_requests = max(0, state.running + state.waiting - self.sequences(now))
        for flights in known:
            flights.ended_blocks = 0
        self.samples += bool(state.prefill_tokens_per_second)

    def restarted(self) -> None:
        """A new epoch began."""
        self.samples = 0
        self.own.recent.clear()
        for peer in self.peers.values():
            peer.expected.clear()

    def room(self, worker: Worker, now: float, *, percent: int) -> Capacity | None:
        """Blocks that a new request may take where ``percent`` stay free; None where that is not known."""
        load = known_load(worker, now)
        if load is None:
            return None
        known = self.all(now)
        return Capacity.of(
            load.state,
            sent=self._sent_since(load, known),
            ended=sum(flights.ended_blocks for flights in known),
            reservations=_Together([flights.reservations for flights in known]),
            percent=percent,
        )

    def _sent_since(self, load: WorkerLoad, known: Iterable[InFlightRequests]) -> int:
        return sum(flights.blocks_since(load.at) for flights in known)

    def blank(self, load: WorkerLoad | None, now: float) -> int | None:
        """Blocks that hold nothing: free ones less idle cached ones, as the engine or its agent counts them."""
        if load is None or not load.state.blocks_total:
            return None
        state = load.state
        if state.blocks_idle is not None:
            blank = state.blocks_free - state.blocks_idle
        else:
            blank = min(state.blocks_free, state.blocks_total - state.held)
        return max(0, blank - self._sent_since(load, self.all(now)))


def _agreement(keys: list[int], first: int, skip: int, theirs: Sequence[int]) -> int:
    """How far two chains agree, of which the keys before ``first`` and ``skip`` are not known; 0: not at all."""
    at = start = max(first, skip)
    while at < len(keys) and at - skip < len(theirs) and keys[at] == theirs[at - skip]:
        at += 1
    return at if at > start else 0


@dataclass
class _Together:
    """Reservations of several replicas."""

    parts: list[BlockReservations]

    @property
    def blocks(self) -> int:
        return sum(part.blocks for part in self.parts)


def known_load(worker: Worker, now: float) -> WorkerLoad | None:
    """Its last report, unless that is too old to say anything."""
    return worker.load if worker.load and now - worker.load.at <= FORGET_SECONDS else None


class ModelledFleet(LiveFleet):
    """A fleet of whose workers plain Python knows the loads as well."""

    def loads(self, worker: Worker) -> WorkerLoads:
        """Those of one worker."""
        return self._known().setdefault(worker.row, WorkerLoads())

    def _known(self) -> dict[WorkerRow, WorkerLoads]:
        known: dict[WorkerRow, WorkerLoads] = self.__dict__.setdefault("_modelled", {})
        return known

    def candidate(self, worker: Worker, adapter: str, now: float, *, percent: int, worth: Worth) -> CandidateView:
        """As a decision sees it for requests of an adapter, or of none; ``percent`` of its blocks are to stay free."""
        loads, load = self.loads(worker), known_load(worker, now)
        room = loads.room(worker, now, percent=percent)
        fresh = load is not None and not worker.stream.stale(now) and not worker.unindexed
        state = load.state if load else None
        return CandidateView(
            reported_at=load.at if load and fresh else None,
            queued_tokens=loads.others_tokens if load else 0,
            inflight_tokens=loads.tokens(now),
            tokens_per_second=state.prefill_tokens_per_second if state and loads.samples >= SAMPLES_NEEDED else None,
            inter_token_seconds=state.inter_token_seconds if state else None,
            loaded_per_second=state.loaded_tokens_per_second if state else None,
            batched_tokens=worker.hello.max_batched_tokens if worker.hello else 0,
            blocks_total=room.total if room else None,
            blocks_free=room.free if room else None,
            blocks_reserved=room.reserve if room else 0,
            blocks_idle=room.idle if room else 0,
            blocks_used=room.used if room else 0,
            blocks_blank=loads.blank(load, now),
            requests=(loads.others_requests if load else 0) + loads.sequences(now),
            last_used=loads.last_used,
            trust=trust_in(worker.evidence),
            worth=worth,
            adapter_seconds=adapter_seconds(displaces=adapter in worker.adapters.displaced) if adapter else 0.0,
        )

    def begin(self, decision: Decision, prompt: Prompt) -> ModelledRequest:  # type: ignore[override]
        """Begin it in both."""
        worker, now = self._registry.worker(decision.id), self.now
        if worker is None:
            return ModelledRequest(super().begin(decision, prompt), None)
        held = (decision.predicted_tokens - decision.loaded_tokens) // prompt.block_size if prompt.block_size else 0
        needed, common = needed_blocks(prompt), usable_blocks(len(prompt.keys) // KEY_BYTES, prompt)
        loads = self.loads(worker)
        room = loads.room(worker, now, percent=0)
        flight = InFlightRequest(
            loads.own,
            lambda: now,
            keys=prompt.keys,
            tokens=decision.uncached_tokens + (prompt.prompts - 1) * prompt.tokens,
            sequences=prompt.prompts * prompt.choices,
            blocks=needed,
            taken=needed - (room.shared(held) if room else 0),
            common=prompt.keys[: KEY_BYTES * common],
        )
        begun = ModelledRequest(super().begin(decision, prompt), flight)
        loads.own.begin(flight, prompt_tokens=prompt.tokens, held=held)
        loads.last_used = worker.row.last_used
        return begun

    def hello(self, connection: Connection, hello: Hello) -> list[StreamEvent]:
        """A new epoch begins in both."""
        known = self._registry.worker(worker_id(hello.pool, hello.worker, hello.rank))
        before = known.stream.epoch if known else ""
        events = super().hello(connection, hello)
        if hello.epoch != before:
            self.loads(connection.ranks[hello.rank]).restarted()
        return events

    def hear(self, connection: Connection, loads: Loads) -> None:
        """What other replicas tell counts in both."""
        for load in loads.loads:
            if (worker := connection.ranks.get(load.rank)) is not None:
                modelled = self.loads(worker)
                heard = modelled.hear(load, worker, self.now)
                super().hear(connection, Loads((load,)))
                modelled.last_used = worker.row.last_used if heard.begun else modelled.last_used

    def receive(
        self, connection: Connection, frame: Report | Snapshot | Delta, place: tuple[int, int] | None = None
    ) -> list[StreamEvent]:
        """A State that is taken over counts in both."""
        worker = connection.ranks.get(frame.rank)
        before = worker.load if worker else None
        events = super().receive(connection, frame, place)
        if worker is not None and not isinstance(frame, State):
            self.loads(worker).changed()
        if worker is not None and worker.load is not None and worker.load is not before:
            self.loads(worker).accept(worker.load.state, self.now)
        return events


@dataclass
class ModelledRequest:
    """A request in flight in both."""

    native: NativeRequest
    plain: InFlightRequest | None

    @property
    def blocks(self) -> int:
        return self.native.blocks

    def first_token(self) -> None:
        self.native.first_token()
        if self.plain:
            self.plain.first_token()

    def finish(self, *, cached_tokens: int | None = None) -> None:
        if self.plain:
            self.plain.finish(cached_tokens=cached_tokens)
        self.native.finish(cached_tokens=cached_tokens)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.finish()
