"""PrefixCachePools and EndpointSlices: parsed, kept by name, and merged into pool views. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

import msgspec

from cachefleet_controlplane.pools.source import EndpointEntry, PoolView, pool_views
from cachefleet_core.pool.admitted import InForce, in_force
from cachefleet_core.pool.spec import API_VERSION, KIND, PLURAL
from cachefleet_core.pool.validation_problems import PoolError
from cachefleet_core.pool.worker_pods import is_of_pool
from cachefleet_core.tls_names import ENGINE_PORT_NAME
from cachefleet_runtime.kubernetes import KubernetesError, Object, Query

POOL_LABEL: Final = "cachefleet.io/pool"
SERVICE_LABEL: Final = "kubernetes.io/service-name"
SERVICE_SUFFIX: Final = "-workers"
ENGINE_PORT: Final = 8000
AGENT_PORT: Final = 8082

T = TypeVar("T")


class ObjectError(ValueError):
    """An object that cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """One kind of object: its API path, its label selector, and its parser.

    ``parse`` gives None for an object that is not ours and raises ObjectError for one that cannot be used.
    """

    api: str
    plural: str
    parse: Callable[[Object], T | None]
    selector: str = ""

    def path(self, namespace: str) -> str:
        """The URL path of its objects in a namespace, "" for all namespaces."""
        scope = f"namespaces/{namespace}/" if namespace else ""
        return f"/apis/{self.api}/{scope}{self.plural}"

    def list_query(self, *, limit: int, token: str) -> Query:
        """The query of one page of a list; ``token`` continues after the page before, "" for the first."""
        return self._query({"limit": str(limit)} | ({"continue": token} if token else {}))

    def watch_query(self, *, version: str, seconds: int) -> Query:
        """The query of a watch that the server ends after ``seconds``, with a bookmark: an idle watch stays recent."""
        return self._query(
            {
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": version,
                "timeoutSeconds": str(seconds),
            }
        )

    def _query(self, query: dict[str, str]) -> Query:
        return query | ({"labelSelector": self.selector} if self.selector else {})


class Objects(Generic[T]):
    """The objects of one resource in one namespace (or all), as of ``version``.

    An object that can no longer be read keeps its last good form; ``invalid`` tells which and why, ``unread`` is what
    the API server has of it.
    """

    def __init__(self, resource: Resource[T]) -> None:
        self.resource = resource
        self.version = ""
        self.listed = False
        self.invalid: dict[str, str] = {}
        self.unread: dict[str, Object] = {}
        self._items: dict[str, T] = {}

    def values(self) -> Iterable[T]:
        """The parsed objects, in no particular order."""
        return self._items.values()

    def items(self) -> Mapping[str, T]:
        """The parsed objects by "namespace/name"."""
        return self._items

    def replace(self, objects: Sequence[Object], version: str) -> None:
        """Replace all objects by a complete list."""
        known, self._items = self._items, {}
        self.invalid, self.unread = {}, {}
        for item in objects:
            if (key := _key(item)) in known:
                self._items[key] = known[key]
            self._put(key, item)
        self.version = version
        self.listed = True

    def apply(self, event: Object) -> bool:
        """Apply one watch event; whether any object may have changed. KubernetesError for the server's ERROR."""
        item = _mapping(event.get("object"))
        match event.get("type"):
            case "ADDED" | "MODIFIED":
                self._put(_key(item), item)
            case "DELETED":
                self._items.pop(_key(item), None)
                self._sound(_key(item))
            case "BOOKMARK":
                self.version = _version(item)
                return False
            case "ERROR":
                raise KubernetesError(
                    int(item.get("code", 0)), str(item.get("reason", "Unknown")), str(item.get("message", ""))
                )
            case other:
                raise KubernetesError(0, "UnknownEvent", f"a watch tells of {other!r}")
        self.version = _version(item)
        return True

    def _put(self, key: str, item: Object) -> None:
        try:
            parsed = self.resource.parse(item)
        except ObjectError as error:
            self.invalid[key], self.unread[key] = str(error), item
            return
        self._sound(key)
        if parsed is None:
            self._items.pop(key, None)
        else:
            self._items[key] = parsed

    def _sound(self, key: str) -> None:
        self.invalid.pop(key, None)
        self.unread.pop(key, None)


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None


class _Conditions(msgspec.Struct, frozen=True):
    ready: bool | None = None


class _Target(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class _Endpoint(msgspec.Struct, frozen=True, rename="camel"):
    addresses: tuple[str, ...] = ()
    conditions: _Conditions | None = None
    target_ref: _Target | None = None


class _Port(msgspec.Struct, frozen=True):
    name: str | None = None


class _EndpointSlice(msgspec.Struct, frozen=True, rename="camel"):
    metadata: _Meta
    address_type: str
    endpoints: tuple[_Endpoint, ...] | None = None
    ports: tuple[_Port, ...] | None = None

    @property
    def scheme(self) -> str:
        """How its workers are reached: while a pool rolls, those with and without TLS are in slices of their own."""
        return "https" if any(port.name == ENGINE_PORT_NAME for port in self.ports or ()) else "http"


@dataclass(frozen=True, slots=True)
class PoolEndpoints:
    """The workers of one pool in one EndpointSlice."""

    pool: str
    endpoints: tuple[EndpointEntry, ...]


def parse_pool(item: Object) -> InForce:
    """A PrefixCachePool with the spec that is in force. ObjectError where none can be read."""
    try:
        return in_force({"apiVersion": API_VERSION, "kind": KIND} | item)
    except PoolError as error:
        raise ObjectError(str(error)) from error


def parse_slice(item: Object) -> PoolEndpoints | None:
    """The pool's workers in an EndpointSlice, no other pods of its label; None for a slice of any other Service.
    ObjectError.
    """
    try:
        found = msgspec.convert(item, _EndpointSlice)
    except msgspec.ValidationError as error:
        raise ObjectError(str(error)) from error
    labels = found.metadata.labels or {}
    pool = labels.get(POOL_LABEL, "")
    if not pool or labels.get(SERVICE_LABEL) != pool + SERVICE_SUFFIX or found.address_type not in {"IPv4", "IPv6"}:
        return None
    workers = tuple(_worker(endpoint, found) for endpoint in found.endpoints or () if _is_worker(endpoint, pool))
    return PoolEndpoints(f"{found.metadata.namespace}/{pool}", workers)


POOLS: Final = Resource(API_VERSION, PLURAL, parse_pool)
SLICES: Final = Resource("discovery.k8s.io/v1", "endpointslices", parse_slice, selector=POOL_LABEL)


def merge(
    pools: Iterable[InForce], slices: Iterable[PoolEndpoints], *, tls: bool | None = None
) -> tuple[PoolView, ...]:
    """Pools with their workers; of several endpoints of one worker, a ready one wins, then IPv4.

    ``tls`` is whether this control plane serves TLS, None where that is not to count. While a pool rolls after TLS was
    turned on or off, agents of the other kind cannot report here: nobody vouches for their workers, nor has to.
    """
    found = list(pools)
    foreign = {one.pool.key: frozenset(one.pool.status.foreign_pods or ()) for one in found if one.pool.status}
    workers: dict[str, dict[str, EndpointEntry]] = {}
    for part in slices:
        known = workers.setdefault(part.pool, {})
        others = foreign.get(part.pool, frozenset())
        for endpoint in (each for each in part.endpoints if each.name not in others):
            reports = tls in {None, endpoint.url.startswith("https:")}
            heard = endpoint if reports else msgspec.structs.replace(endpoint, pod="")
            known[endpoint.name] = min(heard, known.get(endpoint.name, heard), key=_preference)
    views = pool_views([one.pool for one in found], {pool: list(known.values()) for pool, known in workers.items()})
    doubtful = {one.pool.key for one in found if not one.admitted}
    return tuple(replace(view, admitted=False) if view.key in doubtful else view for view in views)


def _preference(endpoint: EndpointEntry) -> tuple[bool, bool, str]:
    return not endpoint.ready, "[" in endpoint.url, endpoint.url


def _is_worker(endpoint: _Endpoint, pool: str) -> bool:
    target = endpoint.target_ref
    return bool(endpoint.addresses) and target is not None and target.kind == "Pod" and is_of_pool(target.name, pool)


def _worker(endpoint: _Endpoint, found: _EndpointSlice) -> EndpointEntry:
    address = endpoint.addresses[0] if found.address_type == "IPv4" else f"[{endpoint.addresses[0]}]"
    target = endpoint.target_ref or _Target()
    ready = endpoint.conditions is None or endpoint.conditions.ready is not False  # the API counts unknown as ready
    base = f"{found.scheme}://{address}"
    return EndpointEntry(target.name, f"{base}:{ENGINE_PORT}", f"{base}:{AGENT_PORT}", ready, target.uid)


def _mapping(value: Any) -> Object:
    return value if isinstance(value, dict) else {}


def _key(item: Object) -> str:
    metadata = _mapping(item.get("metadata"))
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


def _version(item: Object) -> str:
    return str(_mapping(item.get("metadata")).get("resourceVersion", ""))
