"""Fleets of several pools before one gateway: thresholds and roles, and what their engines were sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.worker_spec import Role
from cachefleet_core.report_frames import Capability
from tests.controlplane.gateway.harness import Front, Worker, engine, front, pool
from tests.fakes.engine import FakeEngine, Seen

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
FIELD = "cache_hit_threshold"
ANSWERING = (CHAT, COMPLETION)


def declared(name: str, role: Role = Role.BOTH, *, threshold: float = 0.0) -> PrefixCachePool:
    plain = pool()
    hit = plain.spec.hit.model_copy(update={"threshold": threshold})
    spec = plain.spec.model_copy(update={"role": role, "hit": hit})
    metadata = plain.metadata.model_copy(update={"name": name})
    return plain.model_copy(update={"metadata": metadata, "spec": spec})


class Fleet:
    """Pools by name with their engines; workers are called ``pool-number``."""

    def __init__(self, gate: Front, pools: dict[str, tuple[PrefixCachePool, Sequence[Worker]]]) -> None:
        self.gate = gate
        self._pools = pools
        self.declare()

    def declare(self, *, ready: Sequence[str] | None = None) -> None:
        """All pools, with the workers of those named ready, of all without a name."""
        views = []
        for name, (declared_pool, engines) in self._pools.items():
            up = ready is None or name in ready
            endpoints = [WorkerEndpoint(f"{name}-{i}", one.url, up) for i, one in enumerate(engines)]
            views.append(PoolView(declared_pool, tuple(endpoints)))
        self.gate.fleet.update_pools(views)

    def engine(self, worker: str) -> FakeEngine:
        name, _, number = worker.rpartition("-")
        found = self._pools[name][1][int(number)]
        assert isinstance(found, FakeEngine)
        return found

    def report(self, *workers: str, capabilities: Sequence[Capability] = (), **load: Any) -> None:
        """What the agents of these would say, or of all; ``capabilities`` of their plugins where there are any."""
        everybody = [f"{name}-{i}" for name, (_, engines) in self._pools.items() for i in range(len(engines))]
        for worker in workers or everybody:
            said: dict[str, Any] = {"worker": worker, "pool": f"default/{worker.rpartition('-')[0]}"}
            said |= {"capabilities": tuple(capabilities)} if capabilities else {}
            self.gate.report(self.gate.engines.index(self.engine(worker)), said=said, **load)

    def sent(self, worker: str) -> list[dict[str, Any]]:
        """The bodies that a worker was asked to answer."""
        return [json.loads(seen.body) for seen in self.seen(worker)]

    def seen(self, worker: str) -> list[Seen]:
        return [seen for seen in self.engine(worker).requests if seen.path in ANSWERING]

    @property
    def attempts(self) -> list[tuple[str, str, str]]:
        """Of the last request: worker, kind and outcome."""
        return [(attempt.worker, attempt.kind, attempt.outcome) for attempt in self.gate.records[-1].attempts]


@asynccontextmanager
async def gated(*engines: Worker, threshold: float = 0.5, name: str = "demo", **options: Any) -> AsyncIterator[Fleet]:
    """One pool with a threshold before engines that the caller runs."""
    async with front(engines, **options) as gate:
        yield Fleet(gate, {name: (declared(name, threshold=threshold), engines)})


@asynccontextmanager
async def split(
    prefill: Sequence[Worker],
    decode: Sequence[Worker],
    *,
    both: Sequence[Worker] = (),
    threshold: float = 0.0,
    **options: Any,
) -> AsyncIterator[Fleet]:
    """A Prefill and a Decode pool, and one of whole workers if there are any, before engines that the caller runs."""
    async with front([*prefill, *decode, *both], **options) as gate:
        pools = {
            "prefill": (declared("prefill", Role.PREFILL), prefill),
            "decode": (declared("decode", Role.DECODE, threshold=threshold), decode),
        }
        yield Fleet(gate, pools | ({"both": (declared("both"), both)} if both else {}))


def nixl(**options: Any) -> FakeEngine:
    return engine(connector="nixl", **options)
