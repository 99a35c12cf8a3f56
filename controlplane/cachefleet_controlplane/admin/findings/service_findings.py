"""What is wrong with the control plane itself: pools that cannot be read, store, tenants, index, and with requests that
it refuses (pure).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from cachefleet_controlplane.admin.findings.finding import Fault, Finding, Severity, faults, operations, troubleshooting
from cachefleet_controlplane.cache_contracts.contract_report import ContractState
from cachefleet_controlplane.gateway.engine_deaths.engine_deaths import FatalRequest
from cachefleet_controlplane.tenants.directory import Directory
from cachefleet_controlplane.workers.views import IndexStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """What a replica knows of itself, beside its fleet; a problem is a sentence, "" where there is none."""

    pools_known: bool = True
    """Pools were read at least once."""
    pools_problem: str = ""
    unread_pools: tuple[str, ...] = ()
    """Pools that cannot be read as they are declared now, as "namespace/name"."""
    unknown_control_planes: str = ""
    """Which pools name control planes that are not known."""
    store_problem: str = ""
    private_store: bool = False
    """Other replicas do not see what is stored here."""
    tenants_problem: str = ""
    directory: Directory = field(default_factory=Directory)
    leaving: bool = False
    fatal_requests: tuple[FatalRequest, ...] = ()
    """Requests that are refused since engines ended while they computed them."""
    contracts: tuple[ContractState, ...] = ()


def service_findings(state: ServiceState) -> Iterator[Finding]:
    """The findings of one replica, beside those of its fleet and index."""
    for subject, groups in _SERVICE.items():
        yield from faults(groups, state, subject)
    for pool in state.unread_pools:
        yield from faults(_UNREAD_POOL, pool, f"pool {pool}")
    for request in state.fatal_requests:
        yield from faults(_FATAL_REQUEST, request, f"request {request.subject.decision}")


def index_findings(index: IndexStatus) -> Iterator[Finding]:
    """What the index has refused since the replica started."""
    yield from faults(_INDEX, index, "index")


_STORE: Final = troubleshooting("the-store-is-down")
_SERVICE: Final[Mapping[str, tuple[tuple[Fault[ServiceState], ...], ...]]] = {
    "pools": (
        (
            Fault(
                lambda state: not state.pools_known,
                Severity.CRITICAL,
                "PoolsUnknown",
                lambda state: f"no pool was read since this replica started: {state.pools_problem or 'still reading'}",
                "see that the pool file, or the Kubernetes API, can be read",
                troubleshooting("the-watch-fails"),
            ),
            Fault(
                lambda state: state.pools_problem,
                Severity.WARNING,
                "PoolsOutOfDate",
                lambda state: f"pools cannot be read, those read last stay in force: {state.pools_problem}",
                "correct what the message names; it is read again by itself",
                troubleshooting("the-watch-fails"),
            ),
        ),
        (
            Fault(
                lambda state: state.unknown_control_planes,
                Severity.WARNING,
                "ControlPlaneUnknown",
                lambda state: f"requests for their models are refused here: {state.unknown_control_planes}",
                "name its gateway in CACHEFLEET_CONTROL_PLANES (chart: controlPlane.others), or make the pool anew "
                "with another spec.controlPlane",
                operations("several-control-planes"),
            ),
        ),
    ),
    "store": (
        (
            Fault(
                lambda state: state.store_problem,
                Severity.WARNING,
                "StoreFails",
                lambda state: (
                    f"decisions, tenants and usage cannot be written; requests are served: {state.store_problem}"
                ),
                "see that the database answers and its disk has room; it is tried again by itself",
                _STORE,
            ),
            Fault(
                lambda state: state.private_store,
                Severity.INFO,
                "PrivateStore",
                lambda _: "each replica has a database of its own, so tenants cannot be changed",
                "give all replicas one PostgreSQL (CACHEFLEET_DATABASE_URL), or run one replica",
                _STORE,
            ),
        ),
    ),
    "tenants": (
        (
            Fault(
                lambda state: state.directory.unread,
                Severity.CRITICAL,
                "TenantsUnread",
                lambda state: (
                    f"API keys were not read since this replica started, so nobody is served: {state.tenants_problem}"
                ),
                "see that the database answers; it is read again by itself",
                _STORE,
            ),
            Fault(
                lambda state: state.directory.lost,
                Severity.CRITICAL,
                "KeysLost",
                lambda _: "the store may have had API keys and was lost, so nobody is served",
                "put the store back, make keys anew, or run `cachefleet tenants open`",
                troubleshooting("api-keys-are-lost"),
            ),
            Fault(
                lambda state: state.directory.keyless,
                Severity.WARNING,
                "NoKeys",
                lambda _: "there is no API key and requests need one, so nobody is served",
                "make a tenant and a key of it (`cachefleet tenants create NAME`, then `cachefleet tenants keys create "
                "NAME`), or serve everybody, where no setting requires keys: `cachefleet tenants open`",
                "docs/tenants.md#keys",
            ),
            Fault(
                lambda state: state.tenants_problem,
                Severity.WARNING,
                "TenantsOutOfDate",
                lambda state: f"tenants and keys may be out of date: {state.tenants_problem}",
                "see that the database answers; do not restart this replica before",
                _STORE,
            ),
            Fault(
                lambda state: state.directory.open,
                Severity.INFO,
                "KeysNotRequired",
                lambda _: "requests without an API key are served, as the default tenant's",
                "to change that, make a tenant and a key of it (`cachefleet tenants create NAME`, then "
                "`cachefleet tenants keys create NAME`), or set CACHEFLEET_API_KEYS=required",
                "docs/tenants.md#keys",
            ),
        ),
    ),
    "replica": (
        (
            Fault(
                lambda state: state.leaving,
                Severity.INFO,
                "ShuttingDown",
                lambda _: "this replica takes no new requests, it is shutting down",
                "ask another replica",
                troubleshooting("control-plane-absent"),
            ),
        ),
    ),
}
_UNREAD_POOL: Final[tuple[tuple[Fault[str], ...], ...]] = (
    (
        Fault(
            lambda _: True,
            Severity.WARNING,
            "Invalid",
            lambda _: "it cannot be read as it is declared now; what was read last stays in force",
            "correct it: the condition ConfigValid, or `cachefleet check POOL.yaml`, names the field",
            operations("configvalid"),
        ),
    ),
)
_FATAL_REQUEST: Final[tuple[tuple[Fault[FatalRequest], ...], ...]] = (
    (
        Fault(
            lambda _: True,
            Severity.WARNING,
            "FatalRequest",
            lambda request: (
                f"engines of {' and '.join(request.workers)} ended while they computed it; asked of model "
                f"{request.subject.model} by tenant {request.subject.tenant}, refused for {request.seconds} s more"
            ),
            "read the engines' logs for why they ended, and ask the tenant what it sent",
            troubleshooting("a-request-ends-engines"),
        ),
    ),
)
_FULL: Final = troubleshooting("the-index-is-full")
_INDEX: Final[tuple[tuple[Fault[IndexStatus], ...], ...]] = (
    (
        Fault(
            lambda index: index.shed_frames,
            Severity.INFO,
            "FramesShed",
            lambda index: f"{index.shed_frames:,} reports were not applied since the start: it was full",
            "where a worker is IndexFull: give the control plane more memory",
            _FULL,
        ),
    ),
    (
        Fault(
            lambda index: index.excess_claims,
            Severity.WARNING,
            "ExcessClaims",
            lambda index: f"{index.excess_claims:,} times since the start a worker claimed more than it can hold",
            "the log names the worker: correct model.kvBytesPerToken, or replace it",
            _FULL,
        ),
    ),
    (
        Fault(
            lambda index: index.refused_frames,
            Severity.INFO,
            "FramesRefused",
            lambda index: f"{index.refused_frames:,} reports were malformed since the start",
            "run agents and control plane of one version; else report it",
            troubleshooting("reports-are-stale"),
        ),
    ),
)
