"""Builds the tracker of hot prefixes, and what counts, warms and lists them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.account.hot_observer import HotObserver
from cachefleet_controlplane.gateway.account.prefix_list import PrefixList
from cachefleet_controlplane.gateway.account.warm_keys import WarmKeys
from cachefleet_controlplane.gateway.know.prompt_lookup import PromptLookup
from cachefleet_controlplane.hot_prefixes.hot_prefix import PREFIX_BYTES, HotBounds
from cachefleet_controlplane.hot_prefixes.leaving_workers import LeavingWorkers
from cachefleet_controlplane.hot_prefixes.new_worker_warmup import NewWorkerWarmUp
from cachefleet_controlplane.hot_prefixes.tracker import HotPrefixes
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.cache_salts import Salter
from cachefleet_controlplane.tenants.directory import Tenants
from cachefleet_controlplane.wiring.settings import Settings


@dataclass(frozen=True, slots=True)
class HotPrefixParts:
    """``observer`` counts prefixes of requests; ``new_workers`` warms workers that join; ``shown`` lists prefixes for
    people. ``close`` them at the end.
    """

    observer: HotObserver
    new_workers: NewWorkerWarmUp
    shown: PrefixList

    async def close(self) -> None:
        """End what goes on in the background."""
        await self.observer.close()
        await self.shown.close()


def hot_prefix_parts(
    settings: Settings,
    fleet: Fleet,
    prompt_lookup: PromptLookup,
    tenants: Tenants,
    *,
    salt_key: bytes,
    metrics: Metrics,
) -> HotPrefixParts:
    """Build the tracker of hot prefixes and its two users; it follows changes of the tenants' salts."""
    hot = HotPrefixes(HotBounds(entries=settings.hot_prefixes, bytes=settings.hot_prefixes * PREFIX_BYTES))
    observer, salter = HotObserver(hot, prompt_lookup, fleet, metrics), Salter(salt_key)
    tenants.on_change(lambda: observer.update_tenants(tenants.directory.tenants, salter))

    def ready(pool: str) -> set[str]:
        known = fleet.pool_of(pool)
        return {one.name for one in known.workers.values() if one.ready and not one.differences} if known else set()

    leaving = LeavingWorkers(hot, fleet.holders, metrics, rate=fleet.prefill_rate, ready=ready, clock=time.monotonic)
    return HotPrefixParts(
        observer,
        NewWorkerWarmUp(hot, fleet, metrics, leaving=leaving),
        PrefixList(hot, fleet, WarmKeys(fleet, prompt_lookup, tenants.salt_version), name_key=salt_key),
    )
