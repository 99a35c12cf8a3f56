"""The devices that drivers publish in ResourceSlices, which of them a request of a claim admits, and their taints.

A device is tainted by its driver, in its ResourceSlice, or by an administrator's DeviceTaintRule.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from cachefleet_operator.devices.cel_selectors import SelectorError, fulfils
from cachefleet_operator.kube.objects import Ref
from cachefleet_runtime.kubernetes import LIST_PAGE, Object, RefusedError

KEEPS_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep claims from a device."""
MAX_TAINTS: Final = 3
"""Taints that are told of a request's devices."""
MAX_SECONDS: Final = 5.0
"""What the devices of one request may take to be judged. That is work for a thread: there may be thousands."""


class ClaimApi(Protocol):
    """The requests that these need."""

    async def get(self, ref: Ref) -> Object | None: ...
    async def list(
        self, kind: str, namespace: str, *, page: int, selector: str = "", fields: str = ""
    ) -> list[Object] | None: ...


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device of a ResourceSlice, ``body``; its name is its own among those of a driver's pool."""

    driver: str
    pool: str
    body: Object

    def is_of(self, rule: Mapping[str, Any]) -> bool:
        """Whether a DeviceTaintRule selects it: a rule without a selector selects none, an empty one all."""
        selector = rule["spec"].get("deviceSelector")
        if selector is None:
            return False
        own = {"driver": self.driver, "pool": self.pool, "device": self.body.get("name")}
        return all(selector.get(part) in {None, value} for part, value in own.items())


@dataclass(frozen=True, slots=True)
class PublishedDevices:
    """DeviceClasses by name, None for those that are not there, all ResourceSlices and all DeviceTaintRules."""

    classes: Mapping[str, Object | None]
    slices: Sequence[Object]
    rules: Sequence[Object] = ()

    def matching(self, request: Mapping[str, Any]) -> list[PublishedDevice] | None:
        """Devices that class and selectors of a request admit, None without that class. SelectorError."""
        known = self.classes.get(str(request.get("deviceClassName")))
        if known is None:
            return None
        expressions = [*_expressions(known["spec"]), *_expressions(request)]
        found, end = [], time.monotonic() + MAX_SECONDS
        for device in self._newest():
            if time.monotonic() > end:
                raise SelectorError(f"{expressions} takes longer than {MAX_SECONDS:g} s for all devices")
            if fulfils(expressions, device.driver, device.body):
                found.append(device)
        return found

    def taint_words(self, request: Mapping[str, Any]) -> str:
        """How many of a request's devices have taints that it does not tolerate, and which; "" where none has or that
        cannot be said.
        """
        try:
            found = self.matching(request) or []
        except SelectorError:
            return ""
        tolerations = request.get("tolerations") or ()
        taints = [told for device in found if (told := [*self._taints(device, tolerations)])]
        if not taints:
            return ""
        different = list(dict.fromkeys(word for told in taints for word in told))
        named = ", ".join([*different[:MAX_TAINTS], *(["..."] if different[MAX_TAINTS:] else [])])
        return f"{len(taints)} of {len(found)} such devices being tainted ({named})"

    def _taints(self, device: PublishedDevice, tolerations: Sequence[Object]) -> Iterator[str]:
        """Words for each taint that keeps claims from a device."""
        own = ((taint, "") for taint in device.body.get("taints") or ())
        ruled = (
            (rule["spec"]["taint"], f" of DeviceTaintRule {rule['metadata']['name']}")
            for rule in self.rules
            if device.is_of(rule)
        )
        for taint, origin in (*own, *ruled):
            if taint.get("effect") in KEEPS_AWAY and not _is_tolerated(taint, tolerations):
                yield f"{taint.get('key')}={taint.get('value', '')}:{taint.get('effect')}{origin}"

    def _newest(self) -> Iterator[PublishedDevice]:
        """The devices of the newest generation of each pool of devices."""
        newest: dict[tuple[str, str], int] = {}
        for each in self.slices:
            newest[_pool_of(each)] = max(newest.get(_pool_of(each), 0), _generation(each))
        for each in self.slices:
            if _generation(each) == newest[_pool_of(each)]:
                yield from (PublishedDevice(*_pool_of(each), device) for device in each["spec"].get("devices") or ())


async def published_devices(api: ClaimApi, requests: Sequence[Object]) -> PublishedDevices:
    """What requests are judged by. KubernetesError."""
    names = sorted({str(each.get("deviceClassName")) for each in requests})
    classes = asyncio.gather(*(api.get(Ref("DeviceClass", "", name)) for name in names))
    slices, found = await asyncio.gather(api.list("ResourceSlice", "", page=LIST_PAGE), classes)
    return PublishedDevices(dict(zip(names, found, strict=True)), slices or [])


async def tainted_devices(api: ClaimApi, requests: Sequence[Object]) -> PublishedDevices:
    """As ``published_devices``, with the DeviceTaintRules, where they are served and may be read. KubernetesError."""
    rules, published = await asyncio.gather(_taint_rules(api), published_devices(api, requests))
    return replace(published, rules=rules)


async def _taint_rules(api: ClaimApi) -> list[Object]:
    try:
        return await api.list("DeviceTaintRule", "", page=LIST_PAGE) or []
    except RefusedError:  # rights that somebody else grants may be of an earlier version
        return []


def requests_of(claim_spec: Mapping[str, Any]) -> list[Object]:
    """Each device request in the spec of a claim; of alternatives all."""
    requests = (claim_spec.get("devices") or {}).get("requests") or []
    return [each for request in requests for each in request.get("firstAvailable") or [request.get("exactly") or {}]]


def _expressions(spec: Mapping[str, Any]) -> list[str]:
    return [each["cel"]["expression"] for each in spec.get("selectors") or () if each.get("cel")]


def _is_tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """As Kubernetes compares them: what a toleration leaves out fits every taint."""
    return any(
        each.get("effect") in {None, "", taint.get("effect")}
        and each.get("key") in {None, "", taint.get("key")}
        and (each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""))
        for each in tolerations
    )


def _pool_of(resource_slice: Object) -> tuple[str, str]:
    return resource_slice["spec"]["driver"], resource_slice["spec"]["pool"]["name"]


def _generation(resource_slice: Object) -> int:
    return int(resource_slice["spec"]["pool"].get("generation", 0))
