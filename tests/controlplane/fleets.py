"""A live fleet for tests, with a clock that is moved by hand and agents that are spoken for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cachefleet_controlplane.fleet.agent_connection import Connection
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.frame_ingest import Report
from cachefleet_controlplane.index.worker_id import WorkerId, worker_id
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_controlplane.report_streams.report_stream import StreamEvent
from cachefleet_controlplane.routing.decision import Decision, Prompt, RoutingPolicy
from cachefleet_core.fleet_status.pool_facts import PoolFacts
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.pool.model_names import NameRules
from cachefleet_core.pool.spec import PrefixCachePool, read_pool
from cachefleet_core.report_frames import Delta, DownFrame, Policy, Resync, Snapshot, State
from tests.controlplane.frames import hello, sent, snapshot, state

INDEX_KEY = b"k" * 32
MODEL = "tiny"


def pool(
    name: str = "demo", *, namespace: str = "default", generation: int = 1, uid: str = "", **spec: Any
) -> PrefixCachePool:
    """A CPU-free pool of blocks of 16 tokens; ``spec`` replaces whole sections."""
    sections: dict[str, Any] = {
        "model": {"name": MODEL, "source": "tiny", "weightsMiB": 10},
        "engine": {"image": "vllm", "blockSize": 16, "maxModelLen": 4096},
        "device": {"resource": "nvidia.com/gpu", "memoryMiB": 8192, "activationMiB": 100, "floorMiB": 100},
    }
    return read_pool(
        {
            "apiVersion": "cachefleet.io/v1alpha1",
            "kind": "PrefixCachePool",
            "metadata": {"name": name, "namespace": namespace, "generation": generation, "uid": uid},
            "spec": sections | spec,
        }
    )


def ranked(ranks: int, name: str = "demo", **spec: Any) -> PrefixCachePool:
    """A pool whose workers have that many data-parallel ranks."""
    engine = {"image": "vllm", "blockSize": 16, "maxModelLen": 4096, "dataParallelSize": ranks}
    return pool(name, engine=engine, **spec)


def view(declared: PrefixCachePool, workers: Iterable[str] = (), unready: Iterable[str] = ()) -> PoolView:
    """A pool with its endpoints."""
    ready, waiting = [(name, True) for name in workers], [(name, False) for name in unready]
    return PoolView(declared, tuple(WorkerEndpoint(name, f"http://{name}", up) for name, up in ready + waiting))


@dataclass
class FakeLink:
    """Keeps what it is told."""

    sent: list[DownFrame] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    connection: Connection = field(init=False)

    def send(self, frame: DownFrame) -> None:
        self.sent.append(frame)

    def close(self, code: str, reason: str) -> None:
        self.closed.append(code)

    def policies(self) -> list[int]:
        return [frame.generation for frame in self.sent if isinstance(frame, Policy)]

    def resyncs(self) -> list[str]:
        return [frame.reason for frame in self.sent if isinstance(frame, Resync)]


class LiveFleet(Fleet):
    """A fleet whose clock is ``now``."""

    def __init__(
        self,
        *,
        policy: RoutingPolicy = RoutingPolicy.CACHE_AWARE,
        make_index: Callable[..., Any] = BlockIndex,
        name_rules: NameRules | None = None,
        texts: bool = False,
        **bounds: int,
    ) -> None:
        """``texts``: prompts of unknown blocks are decided by their text."""
        self.now = 1000.0
        self.index = make_index(**bounds)
        super().__init__(
            self.index,
            index_key=INDEX_KEY,
            clock=lambda: self.now,
            wall=lambda: 1.7e9,
            policy=policy,
            name_rules=name_rules,
            texts=make_index() if texts else None,
        )

    def route(self, model: str, prompt: Prompt, *, every: bool = True, **options: Any) -> Decision:
        """With the scores of all candidates."""
        return super().route(model, prompt, every=every, **options)

    def receive(
        self, connection: Connection, frame: Report | Snapshot | Delta, place: tuple[int, int] | None = None
    ) -> list[StreamEvent]:
        """Also of a frame that was never bytes: it is made some, as every frame is."""
        made = sent(frame) if isinstance(frame, Snapshot | Delta | State) else frame
        return super().receive(connection, made, place)

    def report(self, worker: str = "demo-0", holds: Iterable[int] = (), **changes: Any) -> FakeLink:
        """Connect an agent that holds ``holds`` and says so; its link."""
        link = FakeLink()
        greeting: dict[str, Any] = {
            key: changes.pop(key)
            for key in ("epoch", "contract", "pool", "rank", "max_batched_tokens", "rule", "not_indexed", "shares")
            if key in changes
        }
        if "served" in changes:
            greeting["adapters"] = changes.pop("served")
        connection = link.connection = self.connect(link)
        greeting["blocks_total"] = max(100, changes.get("blocks_total", 0))
        self.hello(connection, hello(worker, **greeting))
        held, rank = list(holds), greeting.get("rank", 0)
        self.receive(connection, snapshot(0, *([held] if held else []), rank=rank))
        digest = self.index.digest(worker_id(greeting.get("pool", "default/demo"), worker, rank))
        self.receive(connection, state(0, rank=rank, **{"digest": digest, "held": len(held)} | changes))
        return link

    def worker(self, name: str = "demo-0") -> WorkerFacts:
        return next(worker for worker in self.view().workers if worker.name == name)

    def pool(self, key: str = "default/demo") -> PoolFacts:
        return next(pool for pool in self.view().pools if pool.key == key)


def fleet_of(*workers: str, **options: Any) -> LiveFleet:
    """One pool, "default/demo", with these ready workers that have not reported yet."""
    fleet = LiveFleet(**options)
    fleet.update_pools([view(pool(), workers)])
    return fleet


def wid(worker: str, rank: int = 0) -> WorkerId:
    return worker_id("default/demo", worker, rank)
