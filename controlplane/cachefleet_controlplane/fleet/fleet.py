"""The live state: pools, workers, their blocks and load, and requests in flight.

One event loop owns a Fleet; nothing in it awaits, so between two awaits of its callers nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from cachefleet_native import InFlightRequest, Plane, ReportTap, ReportTaps
from msgspec.structs import replace

from cachefleet_controlplane.fleet.agent_connection import Connection, Link
from cachefleet_controlplane.fleet.agent_connections import AgentConnections
from cachefleet_controlplane.fleet.block_holders import BlockHolders
from cachefleet_controlplane.fleet.demand import Demands
from cachefleet_controlplane.fleet.losses import Losses
from cachefleet_controlplane.fleet.tenant_frames import TenantFrames
from cachefleet_controlplane.fleet.view_builders import (
    ReadyWorker,
    index_status,
    pool_facts,
    ready_workers,
    worker_facts,
)
from cachefleet_controlplane.fleet.worker_arrivals import WorkerArrivals
from cachefleet_controlplane.fleet.worker_troubles import Trouble, trouble_of
from cachefleet_controlplane.index.block_index import BlockIndex, IndexDefectError
from cachefleet_controlplane.index.frame_ingest import Report
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_controlplane.report_streams.report_stream import StreamEvent
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Prompt, RoutingPolicy
from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES, needed_blocks, usable_blocks
from cachefleet_controlplane.selection.eligibility import NO_ONE, Duty, Selection, on_duty
from cachefleet_controlplane.selection.selector import Selector
from cachefleet_controlplane.selection.text_selector import TextSelector
from cachefleet_controlplane.workers.block_keyers import Keyers
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.registry import Registry
from cachefleet_controlplane.workers.render_profiles import RenderFacts, RenderProfiles
from cachefleet_controlplane.workers.views import FleetView, ServedModel
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.block_keys import BlockKeyer
from cachefleet_core.native_block_keys import NativeBlockKeyer
from cachefleet_core.pool.model_names import Claim, NameRules
from cachefleet_core.report_frames import DownFrame, Hello, Loads, State
from cachefleet_core.tenancy import TenantId

logger = logging.getLogger(__name__)


class Fleet:
    """Live state and decisions; ``clock`` is monotonic, ``wall`` Unix time, in seconds; ``index_key`` seeds block keys.

    With ``texts``, an index of its own, prompts of unknown blocks are decided by their text. With a ``salt_key``
    workers are told of warm prefixes, salted with it, and of tenants' shares; ``salt_version`` gives the version of a
    tenant's salt, ``tenants`` the names of all.
    """

    def __init__(
        self,
        index: BlockIndex,
        *,
        index_key: bytes,
        salt_key: bytes | None = None,
        salt_version: Callable[[TenantId], int] = lambda _: 1,
        tenants: Callable[[], Iterable[TenantId]] = tuple,
        keyer: type[BlockKeyer] = NativeBlockKeyer,
        texts: BlockIndex | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        policy: RoutingPolicy = RoutingPolicy.CACHE_AWARE,
        name_rules: NameRules | None = None,
    ) -> None:
        self.policy = policy
        """What decides where ``route`` is given no policy; may be changed at any time."""
        self._index = index
        self._clock = clock
        self._keyers = Keyers(index_key, keyer)
        self._registry = own = Registry(wall, clock, name_rules)
        self.elsewhere, self.models_elsewhere = own.elsewhere, own.models_elsewhere
        self.refuted_blocks, self.aliased, self.aliases = own.refuted_blocks, own.aliased, own.aliases
        self._agents = AgentConnections(index, self._registry)
        self._render_facts, self._arrivals = RenderProfiles(self._registry), WorkerArrivals(clock)
        self.demands = Demands(clock)
        """Requests that wait for a worker, or for room on one."""
        self.losses, self.holders = Losses(index, self._registry, clock), BlockHolders(index, self._registry)
        self._selector = Selector(index, self._registry)
        self._texts = None if texts is None else TextSelector(texts, self._registry)
        self._tenant_frames = TenantFrames(salt_key, salt_version, tenants) if salt_key else None
        self._listeners = list[Callable[[], None]]()
        self.settle: Callable[[], None] = lambda: None
        """Adds what has been served and not been added yet; called before hit ratios are read."""
        self.informed = asyncio.Event()
        """Set once the pools are known; before that a Hello cannot be answered."""

    # Pools and models.

    def update_pools(
        self, views: Sequence[PoolView], unread: Iterable[Claim] = (), others: Sequence[PoolView] = ()
    ) -> None:
        """Apply the whole state of pools and endpoints, as a PoolSource gives it; ``others`` are not served here."""
        change = self._registry.update(views, unread, others)
        self._arrivals.listed(self._registry.pools.values())
        self.demands.keep(pool.fleet for pool in self._registry.pools.values())
        for worker in change.removed:
            self._agents.removed(worker, self._clock())
        if self._texts:
            self._texts.keep([worker.id for worker in self._registry.workers()])
        self.update_tenants(change.new_policy)
        self.informed.set()
        self._changed()

    def models(self, *, adapters: bool = False) -> list[ServedModel]:
        """Every fleet once, under the shortest name by which it is asked for; with ``adapters`` these, too."""
        return [*self._registry.models(), *(self._registry.adapters() if adapters else ())]

    def serving(self, model: str) -> ServedModel | None:
        """The fleet of a model name, or of "namespace/name"; None where no pool serves it."""
        return self._registry.serving(model)

    def ready_in(self, model: str) -> int:
        """After how many seconds a worker of a model that has none may be ready."""
        return self._arrivals.seconds(self._registry.fleet(model))

    def lacks_workers(self, model: str) -> bool:
        """Whether a declared model has no ready worker of a role that its answers need; one asleep is ready."""
        pools = self._registry.fleet(model)
        needed = (on_duty(pools, Duty.ANSWER), on_duty(pools, Duty.PREFILL))
        return any(role and not any(pool.ready for pool in role) for role in needed)

    def suspended(self, model: str, duty: Duty = Duty.ANSWER) -> Counter[str]:
        """How many ready workers of a model serve nothing, by the reason (a ``Suspension``)."""
        now, pools = self._clock(), on_duty(self._registry.fleet(model), duty)
        ready = (worker for pool in pools for worker in pool.workers.values() if worker.ready)
        return Counter(why for worker in ready if (why := worker.suspended(now)))

    def renderers(
        self, model: str, count: int | None = None, *, first: str = "", guess: Prompt | None = None
    ) -> list[WorkerEndpoint]:
        """At most ``count`` ready workers that may render for a model.

        The one at the URL ``first``, or else that will probably serve ``guess``; then the least busy first.
        """
        now = self._clock()
        if self._texts is None or guess is None:
            return self._selector.renderers(model, now).least_busy(now, count, first=first)
        table = self._texts.renderers(model, now)
        if len(table.preferred(now)) > 1:
            first = self._texts.likely(guess, Selection(model=model, policy=self.policy, now=now))
        return table.least_busy(now, count, first=first)

    def render_facts(self, model: str) -> RenderFacts:
        """Facts that rendering for a model depends on now."""
        return self._render_facts.of(model)

    def announced(self, model: str) -> list[Hello]:
        """The Hellos of a model's ready workers, one per rank."""
        pools = self._registry.fleet(model)
        return [one.hello for pool in pools for one in pool.workers.values() if one.ready and one.hello]

    def outside(self, model: str, endpoints: Collection[str]) -> frozenset[str]:
        """Full names of a model's workers at none of these addresses, each a host with or without a port."""
        workers = (worker for pool in self._registry.fleet(model) for worker in pool.workers.values())
        return frozenset(
            worker.full_name for worker in workers if not (worker.endpoint and worker.endpoint.is_at(endpoints))
        )

    def keyer(self, model: str, *, salt: str = "", lora: str = "") -> BlockKeyer | None:
        """The block keyer for a model; None until a worker has announced the fleet's contract, and for adapters."""
        found = next(((pool.fleet, pool.contract) for pool in self._registry.keyed(model) if pool.contract), None)
        return self._keyers.get(*found, salt=salt, lora=lora) if found else None

    def update_tenants(self, fresh: Sequence[Pool] = ()) -> None:
        """Send workers the policies of ``fresh`` pools, and what has changed with tenants' salts."""
        if self._tenant_frames is not None:
            self._tenant_frames.update(self._registry, self._agents, fresh)
            return
        for pool in fresh:
            self._agents.announce_policy(pool)

    # Decisions.

    def route(
        self,
        model: str,
        prompt: Prompt,
        *,
        exclude: frozenset[str] = NO_ONE,
        policy: RoutingPolicy | None = None,
        duty: Duty = Duty.ANSWER,
        every: bool = False,
        more: int = 0,
    ) -> Decision:
        """Decide, and change nothing: pass the decision to ``begin`` before awaiting anything.

        ``exclude`` has full names or ids. The verdict is REJECT with NO_READY_WORKER without a ready worker, QUEUE or
        REJECT without room. With ``every`` score; with the ``more`` workers that are next in order in the pool.
        """
        now, policy = self._clock(), policy or self.policy
        self._agents.expire(now)
        selector = self._texts if self._texts and prompt.knowledge is Knowledge.APPROXIMATE else self._selector
        selection = Selection(model=model, policy=policy, now=now, exclude=exclude, duty=duty, every=every, more=more)
        try:
            return selector.choose(prompt, selection)
        except IndexDefectError:
            logger.exception("the index failed; deciding without it", extra={"model": model})
            return self._selector.choose(replace(prompt, keys=b"", knowledge=Knowledge.LOAD), selection)

    def most_blocks(self, model: str) -> int:
        """Blocks that a request of several sequences counts for at most: half of the smallest worker; 0: not known."""
        workers = (worker for pool in self._registry.fleet(model) for worker in pool.workers.values() if worker.ready)
        totals = (worker.load.state.blocks_total for worker in workers if worker.load)
        return min(filter(None, totals), default=0) // 2

    def begin(self, decision: Decision, prompt: Prompt) -> InFlightRequest:
        """Count a request that is about to be sent where ``decision`` says, until the result is finished."""
        now, worker = self._clock(), self._registry.worker(decision.id)
        if worker:
            self._registry.sent(worker, decision, prompt, now)
            self._agents.sharing.begun(worker)
            if self._texts:
                self._texts.sent(worker, prompt)
        row = worker.row if worker else Plane().row()
        return row.begin(
            prompt.keys,
            usable_blocks(len(prompt.keys) // KEY_BYTES, prompt),
            decision.uncached_tokens + (prompt.prompts - 1) * prompt.tokens,
            prompt.tokens,
            prompt.prompts * prompt.choices,
            needed_blocks(prompt),
            (decision.predicted_tokens - decision.loaded_tokens) // prompt.block_size if prompt.block_size else 0,
            now,
            self._changed,
        )

    def served(self, worker: WorkerId, claimed: int, served: int) -> None:
        """A worker has answered: of ``claimed`` tokens that the index said it holds, ``served`` came from cache."""
        if known := self._registry.worker(worker):
            known.served(claimed, served, self._clock())

    def prompt_served(self, pool: str, prompt: int, served: int, at: float) -> None:
        """Answers that ended ``at`` that time tell that of so many tokens of their prompts so many came from cache."""
        if known := self._registry.pools.get(pool):
            known.answered(prompt, served, at)

    def listen(self, changed: Callable[[], None]) -> None:
        """Call ``changed``, which must not wait, when there may be new room: a report, a finished request, a pool.

        Changes by time alone, such as a report that becomes stale, do not call it.
        """
        self._listeners.append(changed)

    def _changed(self) -> None:
        for changed in self._listeners:
            changed()

    def worker_failed(self, worker: str) -> None:
        """It could not be reached: prefer others for a while, longer each time. By full name (all ranks) or id."""
        for known in self._registry.named(worker):
            known.failed(self._clock())
            if self._texts:
                self._texts.failed(known)

    def troubles(self, workers: AbstractSet[str]) -> dict[str, Trouble]:
        """Of these, by full names, those whose answers may never come, and what is known of each."""
        ranks: dict[str, list[Worker]] = {name: [] for name in workers}
        for worker in self._registry.workers() if workers else ():
            if (found := ranks.get(worker.full_name)) is not None:
                found.append(worker)
        now = self._clock()
        troubles = ((name, trouble_of(found, now)) for name, found in ranks.items())
        return {name: trouble for name, trouble in troubles if trouble is not None}

    def serves(self, worker: str) -> bool:
        """Whether any rank of a worker, by full name, is ready and does not say that it leaves."""
        now = self._clock()
        return any(known.ready and not known.draining(now) for known in self._registry.named(worker))

    def key_refused(self, worker: str) -> None:
        """It answered 401 or 403: prefer others until it takes the gateway's key. ``worker`` as for worker_failed."""
        for known in self._registry.named(worker):
            known.refused_key(self._clock())

    # Agents.

    @property
    def taps(self) -> ReportTaps:
        """What applies Deltas of live streams on the threads of the server of agents' connections."""
        return self._agents.taps

    def connect(self, link: Link, *, pod: str = "", tap: ReportTap | None = None) -> Connection:
        """Add the connection of an agent; ``pod`` is the uid of its token's pod, "" outside of Kubernetes."""
        return self._agents.connect(link, pod=pod, tap=tap)

    def hello(self, connection: Connection, hello: Hello) -> list[StreamEvent]:
        """Begin a stream on a connection; its events. RefusedError: nothing has changed."""
        now = self._clock()
        events = self._agents.hello(connection, hello, now)
        if StreamEvent.EPOCH in events:
            connection.ranks[hello.rank].history.begin(now)
        self._changed()
        return events

    def receive(self, connection: Connection, frame: Report, place: tuple[int, int] | None = None) -> list[StreamEvent]:
        """Process a frame of a stream, of a State with its place where native code kept it; its events.

        RefusedError: no Hello came before it. FrameError: malformed.
        """
        now = self._clock()
        events = self._agents.receive(connection, frame, now, place)
        if isinstance(frame, State):
            self._changed()
        else:
            connection.ranks[frame.rank].told(frame, now)
        return events

    def hear(self, connection: Connection, loads: Loads) -> None:
        """Take over what other replicas tell of their requests in flight to a connection's worker. FrameError."""
        if self._agents.sharing.hear(connection, loads, self._clock()):
            self._changed()

    def tell_others(self) -> bool:
        """Tell other replicas of changes of this one's requests in flight; whether there may soon be more."""
        return self._agents.sharing.tell(self._clock())

    async def share(self) -> None:
        """Keep other replicas informed of this one's requests in flight, for ever."""
        await self._agents.sharing.run(self._clock)

    def disconnect(self, connection: Connection) -> None:
        """Remove an agent's closed connection; what it reported stays until it is too old."""
        self._agents.disconnect(connection, self._clock())

    def expire(self) -> None:
        """Apply report timeouts; decisions and views do so by themselves."""
        self._agents.expire(self._clock())

    def tell(self, worker: WorkerId, frame: DownFrame) -> bool:
        """Send a frame to a worker's agent; False where none is connected here."""
        known = self._registry.worker(worker)
        return known is not None and self._agents.send(known, frame)

    # Views.

    def ready_workers(self) -> Iterator[ReadyWorker]:
        """Those that their pools' sources list as ready, one per rank."""
        return ready_workers(self._registry.workers(), self._agents)

    def pool_of(self, key: str) -> Pool | None:
        """A pool by namespace and name; None where none is declared."""
        return self._registry.pools.get(key)

    def prefill_rate(self, pool: str) -> float | None:
        """Prompt tokens that a worker of a pool computes a second: the median of those that have measured it."""
        return known.prefill_rate if (known := self.pool_of(pool)) else None

    def view(self) -> FleetView:
        """All pools and workers now, as frozen values."""
        self.settle()
        now, wall = self._clock(), self._registry.wall()
        self._agents.expire(now)
        stats, shares = self._index.stats(), self._index.shares()
        workers = sorted(self._registry.workers(), key=lambda worker: worker.id)
        rates = {key: pool.prefill_rate for key, pool in self._registry.pools.items()}
        return FleetView(
            policy=self.policy.value,
            pools=tuple(
                pool_facts(
                    pool,
                    now,
                    wall=wall,
                    adapters=self._registry.adapter_conflicts(pool),
                    aliases=self._registry.alias_conflicts(pool),
                    demand=self.demands.of(pool.fleet),
                )
                for _, pool in sorted(self._registry.pools.items())
            ),
            workers=tuple(
                worker_facts(
                    worker,
                    now,
                    held_blocks=stats.held.get(worker.id, 0),
                    cache_value=shares.get(worker.id, 0.0),
                    rate=rates.get(worker.pool),
                    agents=self._agents,
                )
                for worker in workers
            ),
            inflight_requests=sum(worker.row.open for worker in workers),
            index=index_status(stats, self._agents),
            tenants=self._tenant_frames.idle(self._registry.pools.values()) if self._tenant_frames else (),
            held=self._tenant_frames.held(self._registry.pools.values()) if self._tenant_frames else (),
        )
