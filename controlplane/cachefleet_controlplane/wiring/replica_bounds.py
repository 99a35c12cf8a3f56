"""Times and sizes of a whole replica that are the same in every installation."""

from __future__ import annotations

from dataclasses import dataclass

from cachefleet_controlplane.admin.admin_app import MAX_BYTES
from cachefleet_controlplane.capacity.capacity_report import KEPT_SECONDS
from cachefleet_controlplane.capacity.size_changes import SETTLING, SettlingBounds
from cachefleet_controlplane.gateway.send.client import CONNECT_SECONDS
from cachefleet_controlplane.pools import source
from cachefleet_controlplane.store.content.store_thread import ANSWER_SECONDS
from cachefleet_controlplane.tenants import directory
from cachefleet_controlplane.transport.native_server import HEAD_SECONDS
from cachefleet_controlplane.wire.http_exchange import STALL_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBounds:
    """The constants of the parts, by name; whoever runs a replica in its own process may choose others."""

    pool_file_poll_seconds: float = source.POLL_SECONDS
    tenants_poll_seconds: float = directory.POLL_SECONDS
    connect_seconds: float = CONNECT_SECONDS
    """How long connecting to a worker may take."""
    store_seconds: float = ANSWER_SECONDS
    """How long a turn of a conversation waits for the store."""
    head_seconds: float = HEAD_SECONDS
    stall_seconds: float = STALL_SECONDS
    admin_bytes: int = MAX_BYTES
    """The longest body on the internal port."""
    capacity_seconds: float = KEPT_SECONDS
    """After so long the hit curves are made anew."""
    settling: SettlingBounds = SETTLING
    """When a pool's new size has settled, so that advice is compared with what came."""
