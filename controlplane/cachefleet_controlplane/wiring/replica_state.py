"""What a replica knows of itself: whether it is ready, and its state for findings."""

from __future__ import annotations

import logging

from cachefleet_controlplane.admin.findings.service_findings import ServiceState
from cachefleet_controlplane.cache_contracts.contract_report import ContractState
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.fleet.startup_readiness import StartupReadiness
from cachefleet_controlplane.gateway.engine_deaths.engine_deaths import FatalRequest
from cachefleet_controlplane.pools.control_plane_share import ControlPlaneShare
from cachefleet_controlplane.pools.source import PoolSource
from cachefleet_controlplane.store.decision_log import DecisionLog
from cachefleet_controlplane.tenants.directory import Directory, Tenants
from cachefleet_controlplane.wiring.settings import Settings

logger = logging.getLogger(__name__)


class ReplicaState:
    """Judges by the replica's parts; ``source`` is None until the replica runs, ``leaving`` set as it shuts down."""

    def __init__(self, settings: Settings, fleet: Fleet, tenants: Tenants, decisions: DecisionLog) -> None:
        self._fleet, self._tenants, self._decisions = fleet, tenants, decisions
        self._private_store = settings.private_store
        self.startup = StartupReadiness(seconds=settings.startup_seconds)
        self.source: PoolSource | None = None
        self._name, self._unknown = settings.control_plane_name, ""
        self.leaving = False

    def note_share(self, share: ControlPlaneShare) -> None:
        """Note, and log once, which pools name control planes that are not known."""
        if share.problem and share.problem != self._unknown:
            logger.warning("requests for models of other control planes are refused: %s", share.problem)
        self._unknown = share.problem

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Whether requests should be sent here, and the body of /readyz.

        A store that fails does not count, unless nobody is served since its tenants were never read.
        """
        informed = self._fleet.informed.is_set()
        awaited = self.startup.awaited(self._fleet.ready_workers)
        directory = self._tenants.directory
        ready = informed and not awaited and not directory.unread and not self.leaving
        detail: dict[str, object] = {
            "ready": ready,
            "draining": self.leaving,
            "control_plane": {"name": self._name, "problem": self._unknown},
            "pools": {"known": informed, "problem": self.source.problem if self.source else "not started"},
            "agents": {"awaited": awaited},
            "store": {"problem": self._decisions.problem, "private": self._private_store},
            "tenants": {"problem": self._tenants.problem, "keys_lost": directory.lost},
        }
        return ready, detail

    def for_findings(
        self, fatal_requests: tuple[FatalRequest, ...], contracts: tuple[ContractState, ...] = ()
    ) -> ServiceState:
        """What the replica knows of itself; ``fatal_requests`` are those refused since engines ended with them."""
        tenants, source = self._tenants, self.source
        read = tenants.informed.is_set()
        return ServiceState(
            pools_known=self._fleet.informed.is_set(),
            pools_problem=source.problem if source else "",
            unread_pools=tuple(claim.pool for claim in source.unread) if source else (),
            unknown_control_planes=self._unknown,
            store_problem=self._decisions.problem if self._decisions.tried else "",
            private_store=self._private_store,
            tenants_problem=tenants.problem if read else "",
            directory=tenants.directory if read else Directory(required=True),
            leaving=self.leaving,
            fatal_requests=fatal_requests,
            contracts=contracts,
        )
