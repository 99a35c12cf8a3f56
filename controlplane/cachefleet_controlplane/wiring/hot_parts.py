"""What the control plane has for hot prefixes, put together."""

from __future__ import annotations

from dataclasses import dataclass

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.hot_observer import HotObserver
from cachefleet_controlplane.gateway.placement.routing_input import RoutingInputBuilder
from cachefleet_controlplane.hot_prefixes.new_worker_warmup import HotWarming
from cachefleet_controlplane.hot_prefixes.tracker import HotBounds, HotPrefixes
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.salts import Salter
from cachefleet_controlplane.settings import Settings
from cachefleet_controlplane.tenants.directory import Tenants


@dataclass(frozen=True, slots=True)
class HotParts:
    """Who notes what is hot, to be closed at the end, and who tells new workers of it."""

    observer: HotObserver
    joiners: HotWarming


def hot_parts(
    settings: Settings,
    fleet: Fleet,
    input_builder: RoutingInputBuilder,
    tenants: Tenants,
    *,
    salt_key: bytes,
    metrics: Metrics,
) -> HotParts:
    bounds = HotBounds(
        entries=settings.hot_prefixes,
        bytes=settings.hot_prefix_bytes,
        half_life_seconds=settings.hot_prefix_half_life_seconds,
    )
    hot = HotPrefixes(bounds)
    observer, salter = HotObserver(hot, input_builder, fleet, metrics), Salter(salt_key)
    tenants.on_change(lambda: observer.update_tenants(tenants.directory.tenants, salter))
    return HotParts(
        observer,
        HotWarming(hot, fleet, metrics, tokens=settings.hot_prefix_tokens, seconds=settings.hot_prefix_seconds),
    )
