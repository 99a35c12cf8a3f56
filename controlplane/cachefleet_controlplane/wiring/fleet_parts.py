"""Builds the fleet: its indexes within their memory, and what it knows of tenants."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.fleet.fleet_metrics import FleetCollector
from cachefleet_controlplane.index.block_index import MOST_BYTES, BlockIndex
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.tenants.directory import Tenants
from cachefleet_controlplane.wiring.settings import Settings
from cachefleet_core.native import Code
from cachefleet_core.tenancy import FleetKey

CGROUP_MEMORY: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Files that bound what a container may take, of cgroups 2 and 1."""
INDEX_SHARE, TEXTS_SHARE = 1 / 2, 1 / 4
"""Of a process's memory what the index may take, and of that what an index of texts may take beside it."""


def process_memory(files: tuple[Path, ...] = CGROUP_MEMORY) -> int:
    """Bytes that this process may take: its container's, at most the machine's."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    texts = (file.read_text().strip() for file in files if file.is_file())
    return min([machine, *(int(text) for text in texts if text.isdecimal())])


def index_memory(settings: Settings, memory: int) -> int:
    """Bytes that the index may take, of a process that may take ``memory``."""
    return settings.index_memory_bytes or min(MOST_BYTES, int(INDEX_SHARE * memory))


def fleet_of(settings: Settings, fleet_key: FleetKey, tenants: Tenants, code: Code, metrics: Metrics) -> Fleet:
    """Build the fleet, shown by ``metrics``; it follows changes of the tenants."""
    most = index_memory(settings, process_memory())
    fleet = Fleet(
        BlockIndex(max_bytes=most),
        index_key=fleet_key.index_key,
        salt_key=fleet_key.salt_key,
        salt_version=tenants.salt_version,
        tenants=tenants.names,
        keyer=code.keyer,
        texts=None if settings.knowledge == "load" else BlockIndex(max_bytes=int(TEXTS_SHARE * most)),
        policy=RoutingPolicy(settings.policy),
        name_rules=settings.name_rules,
    )
    tenants.on_change(fleet.update_tenants)
    metrics.collect_from(FleetCollector(fleet.view))
    return fleet
