"""What a pool claims: whether it can, its own ResourceClaimTemplates, and the memory of the devices.

Drivers publish memory in ResourceSlices, as the capacity ``memory``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cachefleet_core.budget import MIB
from cachefleet_core.pool.admitted import known_memory
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_operator import names
from cachefleet_operator.devices.cel_selectors import NoConditionError, SelectorError, capacity_bytes
from cachefleet_operator.devices.published_devices import ClaimApi, PublishedDevices, published_devices, requests_of
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests.claim_template import claim_template_spec
from cachefleet_runtime.kubernetes import LIST_PAGE, Object, RefusedError

KIND: Final = "ResourceClaimTemplate"
_NOT_SERVED: Final = (
    "spec.device.claims: this API server does not serve resource.k8s.io/v1, as Kubernetes 1.34 and later do: give "
    "spec.device.resource instead"
)


class ClaimsError(ValueError):
    """A pool claims devices, and that cannot be done in this cluster."""


@dataclass(frozen=True, slots=True)
class ClaimTemplates:
    """A pool's own templates, those of former specs too; ``problem``: why it cannot claim devices, "" where it can."""

    templates: Mapping[Ref, Object] = field(default_factory=dict)
    problem: str = ""


NO_TEMPLATES: Final = ClaimTemplates()


class ClaimReader:
    """Reads pools' templates. A pool without claims is asked about once: one of a former spec may be left over."""

    def __init__(self, api: ClaimApi) -> None:
        self._api = api
        self._without: set[tuple[str, str]] = set()

    async def templates(self, pool: Object) -> ClaimTemplates:
        """Those of a pool as the API server has it; no problem where it claims no devices."""
        key = pool["metadata"]["namespace"], pool["metadata"]["name"]
        if claims_devices(pool):
            self._without.discard(key)
            return await _templates(self._api, *key)
        if key in self._without:
            return NO_TEMPLATES
        found = replace(await _templates(self._api, *key), problem="")
        if not found.templates:
            self._without.add(key)
        return found

    def forget(self, namespace: str, name: str) -> None:
        """A pool is gone: another of its name is asked about anew."""
        self._without.discard((namespace, name))


async def _templates(api: ClaimApi, namespace: str, name: str) -> ClaimTemplates:
    try:
        found = await api.list(KIND, namespace, page=LIST_PAGE, selector=names.selector(name))
    except RefusedError as error:
        return ClaimTemplates(problem=f"spec.device.claims: ResourceClaimTemplates cannot be read: {error.message}")
    if found is None:
        return ClaimTemplates(problem=_NOT_SERVED)
    refs = {Ref(KIND, namespace, each["metadata"]["name"]): each for each in found if names.is_ours(each)}
    return ClaimTemplates({ref: {**ref.manifest(), **each} for ref, each in refs.items()})  # a list leaves out its kind


def claims_devices(pool: Mapping[str, Any]) -> bool:
    """Whether a pool, as the API server has it, claims devices."""
    device = (pool.get("spec") or {}).get("device")
    return isinstance(device, Mapping) and bool(device.get("claims"))


MEMORY: Final = "memory"
_SET: Final = "set device.memoryMiB"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The least memory of the devices that a claim may be given, in MiB; None: the ``problem`` with it."""

    mib: int | None = None
    problem: str = ""


async def device_memory(api: ClaimApi, pool: PrefixCachePool, document: Object) -> DeviceMemory:
    """That of the devices which a pool claims. They may differ, and any worker may be given the least.

    What was admitted of the pool as the API server has it, ``document``, holds until it claims others.
    """
    if known := known_memory(document):
        return DeviceMemory(known)
    try:
        asked = await _requests(api, pool)
        if not asked:
            return DeviceMemory(problem=f"the ResourceClaimTemplate that device.claims names is not there; or {_SET}")
        published = await published_devices(api, asked)
    except RefusedError as error:
        return DeviceMemory(problem=f"{error.message}; {_SET}")
    return await asyncio.to_thread(_least, asked, published)


async def _requests(api: ClaimApi, pool: PrefixCachePool) -> list[Object]:
    """Each device request of a pool's claim, of alternatives all."""
    claims, own = pool.spec.device.claims, claim_template_spec(pool)
    if own is None and claims and claims.resource_claim_template_name:
        ref = Ref("ResourceClaimTemplate", pool.metadata.namespace, claims.resource_claim_template_name)
        own = ((await api.get(ref)) or {}).get("spec")
    return requests_of((own or {}).get("spec") or {})


def _least(asked: Sequence[Object], published: PublishedDevices) -> DeviceMemory:
    found: list[int] = []
    for request in asked:
        name = request.get("deviceClassName")
        try:
            matching = published.matching(request)
        except NoConditionError as error:  # the memory of devices is of no use to a claim that is never allocated
            return DeviceMemory(problem=f"selector {error}; correct it in device.claims or in DeviceClass {name}")
        except SelectorError as error:
            return DeviceMemory(problem=f"selector {error}; {_SET}")
        if matching is None:
            return DeviceMemory(problem=f"there is no DeviceClass {name}; create it, or {_SET}")
        told = [memory for device in matching if (memory := _memory(device.body)) is not None]
        if not told:
            lack = "tells its memory" if matching else "is published"
            return DeviceMemory(problem=f"no device of DeviceClass {name} that is asked for {lack}; {_SET}")
        found += told
    return DeviceMemory(min(found) // MIB)


def _memory(device: Object) -> int | None:
    for name, value in (device.get("capacity") or {}).items():
        if str(name).rpartition("/")[2] == MEMORY:
            return capacity_bytes(value)
    return None
