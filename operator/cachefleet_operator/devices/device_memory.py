"""The memory of the devices that a pool claims, as drivers publish it in ResourceSlices (capacity ``memory``)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cachefleet_core.budget import MIB
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_operator.devices.cel_selectors import SelectorError, capacity_bytes, fulfils
from cachefleet_operator.devices.claim_templates import ListApi
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests.claim_template import claim_template_spec
from cachefleet_runtime.kubernetes import LIST_PAGE, Object, RefusedError

MEMORY: Final = "memory"
_SET: Final = "set device.memoryMiB"


class SliceApi(ListApi, Protocol):
    """The requests that this needs."""

    async def get(self, ref: Ref) -> Object | None: ...


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The least memory of the devices that a claim may be given, in MiB; None: the ``problem`` with it."""

    mib: int | None = None
    problem: str = ""


async def device_memory(api: SliceApi, pool: PrefixCachePool) -> DeviceMemory:
    """That of the devices which a pool claims. They may differ, and any worker may be given the least."""
    try:
        asked = await _requests(api, pool)
        if not asked:
            return DeviceMemory(problem=f"the ResourceClaimTemplate that device.claims names is not there; or {_SET}")
        names = sorted({str(each.get("deviceClassName")) for each in asked})
        slices, *classes = await asyncio.gather(
            api.list("ResourceSlice", "", page=LIST_PAGE), *(api.get(Ref("DeviceClass", "", name)) for name in names)
        )
    except RefusedError as error:
        return DeviceMemory(problem=f"{error.message}; {_SET}")
    known = dict(zip(names, classes, strict=True))
    return _least(asked, known, slices or [])  # type: ignore[arg-type]  # gather loses which is which


async def _requests(api: SliceApi, pool: PrefixCachePool) -> list[Object]:
    """Each device request of a pool's claim, of alternatives all."""
    claims, own = pool.spec.device.claims, claim_template_spec(pool)
    if own is None and claims and claims.resource_claim_template_name:
        ref = Ref("ResourceClaimTemplate", pool.metadata.namespace, claims.resource_claim_template_name)
        own = ((await api.get(ref)) or {}).get("spec")
    requests = (((own or {}).get("spec") or {}).get("devices") or {}).get("requests") or []
    return [each for request in requests for each in request.get("firstAvailable") or [request.get("exactly") or {}]]


def _least(asked: Sequence[Object], classes: Mapping[str, Object | None], slices: Sequence[Object]) -> DeviceMemory:
    found: list[int] = []
    for request in asked:
        name = str(request.get("deviceClassName"))
        known = classes.get(name)
        if known is None:
            return DeviceMemory(problem=f"there is no DeviceClass {name}; create it, or {_SET}")
        try:
            matching = list(_matching([*_expressions(known["spec"]), *_expressions(request)], slices))
        except SelectorError as error:
            return DeviceMemory(problem=f"selector {error}; {_SET}")
        told = [memory for device in matching if (memory := _memory(device)) is not None]
        if not told:
            lack = "tells its memory" if matching else "is published"
            return DeviceMemory(problem=f"no device of DeviceClass {name} that is asked for {lack}; {_SET}")
        found += told
    return DeviceMemory(min(found) // MIB)


def _expressions(spec: Mapping[str, Any]) -> list[str]:
    return [each["cel"]["expression"] for each in spec.get("selectors") or () if each.get("cel")]


def _matching(expressions: Sequence[str], slices: Sequence[Object]) -> Iterator[Object]:
    """Devices of the newest generation of their pool."""
    newest: dict[tuple[str, str], int] = {}
    for each in slices:
        key = _pool_of(each)
        newest[key] = max(newest.get(key, 0), each["spec"]["pool"].get("generation", 0))
    for each in slices:
        if each["spec"]["pool"].get("generation", 0) == newest[_pool_of(each)]:
            driver = each["spec"]["driver"]
            yield from (device for device in each["spec"].get("devices") or () if fulfils(expressions, driver, device))


def _pool_of(resource_slice: Object) -> tuple[str, str]:
    return resource_slice["spec"]["driver"], resource_slice["spec"]["pool"]["name"]


def _memory(device: Object) -> int | None:
    for name, value in (device.get("capacity") or {}).items():
        if str(name).rpartition("/")[2] == MEMORY:
            return capacity_bytes(value)
    return None
