"""The devices that drivers publish in ResourceSlices, and which of them a request of a claim admits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cachefleet_operator.devices.cel_selectors import SelectorError, fulfils
from cachefleet_operator.kube.objects import Ref
from cachefleet_runtime.kubernetes import LIST_PAGE, Object

KEEPS_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep claims from a device."""
MAX_SECONDS: Final = 5.0
"""What the devices of one request may take to be judged. That is work for a thread: there may be thousands."""


class ClaimApi(Protocol):
    """The requests that these need."""

    async def get(self, ref: Ref) -> Object | None: ...
    async def list(
        self, kind: str, namespace: str, *, page: int, selector: str = "", fields: str = ""
    ) -> list[Object] | None: ...


@dataclass(frozen=True, slots=True)
class PublishedDevices:
    """DeviceClasses by name, None for those that are not there, and all ResourceSlices."""

    classes: Mapping[str, Object | None]
    slices: Sequence[Object]

    def matching(self, request: Mapping[str, Any]) -> list[Object] | None:
        """Devices that class and selectors of a request admit, None without that class. SelectorError."""
        known = self.classes.get(str(request.get("deviceClassName")))
        if known is None:
            return None
        expressions = [*_expressions(known["spec"]), *_expressions(request)]
        found, end = [], time.monotonic() + MAX_SECONDS
        for driver, device in self._newest():
            if time.monotonic() > end:
                raise SelectorError(f"{expressions} takes longer than {MAX_SECONDS:g} s for all devices")
            if fulfils(expressions, driver, device):
                found.append(device)
        return found

    def taint_words(self, request: Mapping[str, Any]) -> str:
        """How many of a request's devices are tainted, "" where none is or that cannot be said."""
        try:
            found = self.matching(request) or []
        except SelectorError:
            return ""
        taints = [taint for device in found if (taint := _taint(device))]
        if not taints:
            return ""
        first = f"{taints[0].get('key')}={taints[0].get('value', '')}:{taints[0].get('effect')}"
        return f"{len(taints)} of {len(found)} such devices being tainted ({first})"

    def _newest(self) -> Iterator[tuple[str, Object]]:
        """Driver and device, of the newest generation of each pool of devices."""
        newest: dict[tuple[str, str], int] = {}
        for each in self.slices:
            newest[_pool_of(each)] = max(newest.get(_pool_of(each), 0), _generation(each))
        for each in self.slices:
            if _generation(each) == newest[_pool_of(each)]:
                yield from ((each["spec"]["driver"], device) for device in each["spec"].get("devices") or ())


async def published_devices(api: ClaimApi, requests: Sequence[Object]) -> PublishedDevices:
    """What requests are judged by. KubernetesError."""
    names = sorted({str(each.get("deviceClassName")) for each in requests})
    classes = asyncio.gather(*(api.get(Ref("DeviceClass", "", name)) for name in names))
    slices, found = await asyncio.gather(api.list("ResourceSlice", "", page=LIST_PAGE), classes)
    return PublishedDevices(dict(zip(names, found, strict=True)), slices or [])


def requests_of(claim_spec: Mapping[str, Any]) -> list[Object]:
    """Each device request in the spec of a claim; of alternatives all."""
    requests = (claim_spec.get("devices") or {}).get("requests") or []
    return [each for request in requests for each in request.get("firstAvailable") or [request.get("exactly") or {}]]


def _expressions(spec: Mapping[str, Any]) -> list[str]:
    return [each["cel"]["expression"] for each in spec.get("selectors") or () if each.get("cel")]


def _taint(device: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((each for each in device.get("taints") or () if each.get("effect") in KEEPS_AWAY), None)


def _pool_of(resource_slice: Object) -> tuple[str, str]:
    return resource_slice["spec"]["driver"], resource_slice["spec"]["pool"]["name"]


def _generation(resource_slice: Object) -> int:
    return int(resource_slice["spec"]["pool"].get("generation", 0))
