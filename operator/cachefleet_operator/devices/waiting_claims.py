"""ResourceClaims for which pods wait, and why they are not allocated.

The scheduler's message names no claim, and a pod whose claim is not there never gets one: it is not even tried.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from cachefleet_operator.devices.published_devices import ClaimApi, PublishedDevices, requests_of, tainted_devices
from cachefleet_runtime.kubernetes import LIST_PAGE, Object, RefusedError

MAX_ASKED: Final = 4
"""Pods of one pool whose events are asked for at a time: what ails one ails most."""
_OF_CLAIMS: Final = re.compile(r"claim|device", re.IGNORECASE)
_NOT_MADE: Final = "FailedResourceClaimCreation"
"""Reason of the event of a pod whose claim cannot be made."""


async def claim_failures(
    api: ClaimApi, pods: Sequence[Object], now: dt.datetime, *, grace_seconds: float
) -> dict[str, str]:
    """Which claim each pod waits for and why, by the pods' names; nothing where that may not be read."""
    late = [pod for pod in pods if waits_for_claims(pod) and _age(pod, now) >= grace_seconds]
    if not late:
        return {}
    try:
        found = await api.list("ResourceClaim", late[0]["metadata"]["namespace"], page=LIST_PAGE)
        claims = {each["metadata"]["name"]: each for each in found or ()}
        unmade = [pod for pod in late if any(name is None for name in claim_names(pod).values())][:MAX_ASKED]
        events = {pod["metadata"]["name"]: await _events(api, pod) for pod in unmade}
    except RefusedError:  # rights that somebody else grants may be of an earlier version
        return {}
    taints = await _taints(api, {name for pod in late for name in claim_names(pod).values()}, claims)
    told = {pod["metadata"]["name"]: _words(pod, claims, events, taints) for pod in late}
    return {name: words for name, words in told.items() if words}


def waits_for_claims(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has claims and no node."""
    spec = pod.get("spec") or {}
    return bool(spec.get("resourceClaims")) and not spec.get("nodeName") and "deletionTimestamp" not in pod["metadata"]


def keeps_from_nodes(claims: str, message: str) -> bool:
    """Whether what is known of a pod's ``claims`` is why it has no node, by the scheduler's ``message``, "" for none:
    a claim is not allocated either while the nodes lack something else.
    """
    return bool(claims) and (not message or _OF_CLAIMS.search(message) is not None)


def claim_names(pod: Mapping[str, Any]) -> dict[str, str | None]:
    """The claims of a pod by their names in it; None for one that is to be made of a template and is not yet."""
    made = {
        each["name"]: each.get("resourceClaimName")
        for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    return {
        each["name"]: each.get("resourceClaimName") or made.get(each["name"])
        for each in (pod.get("spec") or {}).get("resourceClaims") or ()
    }


async def _events(api: ClaimApi, pod: Object) -> list[Object]:
    metadata = pod["metadata"]
    fields = f"involvedObject.uid={metadata.get('uid', '')}"
    return await api.list("Event", metadata["namespace"], page=LIST_PAGE, fields=fields) or []


async def _taints(api: ClaimApi, names: Collection[str | None], claims: Mapping[str, Object]) -> dict[str, str]:
    """Taints of the devices for which claims wait, by claims' names; nothing where they may not be read."""
    there = {name: claims[name] for name in names if name and name in claims}
    waiting = {name: requests_of(each.get("spec") or {}) for name, each in there.items() if not _is_allocated(each)}
    if not waiting:
        return {}
    try:
        published = await tainted_devices(api, [request for each in waiting.values() for request in each])
    except RefusedError:
        return {}
    return await asyncio.to_thread(_taint_words, published, waiting)


def _taint_words(published: PublishedDevices, waiting: Mapping[str, Sequence[Object]]) -> dict[str, str]:
    return {name: ", ".join(filter(None, map(published.taint_words, each))) for name, each in waiting.items()}


def _is_allocated(claim: Object) -> bool:
    return bool((claim.get("status") or {}).get("allocation"))


def _words(
    pod: Object, claims: Mapping[str, Object], events: Mapping[str, Sequence[Object]], taints: Mapping[str, str]
) -> str:
    told = events.get(pod["metadata"]["name"], ())
    return "; ".join(_problems(pod, claims, _last_message(told), taints))


def _problems(pod: Object, claims: Mapping[str, Object], not_made: str, taints: Mapping[str, str]) -> Iterator[str]:
    for name, claim_name in claim_names(pod).items():
        claim = claims.get(claim_name or "")
        if claim_name is None:
            yield f"its ResourceClaim {name} is not made" + (f": {not_made}" if not_made else "")
        elif claim is None:
            yield f"ResourceClaim {claim_name} does not exist"
        elif "deletionTimestamp" in claim["metadata"]:
            yield f"ResourceClaim {claim_name} is being deleted"
        elif not _is_allocated(claim):
            tainted = f", {taints[claim_name]}" if taints.get(claim_name) else ""
            yield f"ResourceClaim {claim_name} ({_asked(claim)}) is not allocated{tainted}"


def _asked(claim: Object) -> str:
    requests = ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ()
    return ", ".join(" or ".join(map(_request_words, _alternatives(each))) for each in requests) or "nothing"


def _alternatives(request: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return request.get("firstAvailable") or [request.get("exactly") or {}]


def _request_words(request: Mapping[str, Any]) -> str:
    count = "all" if request.get("allocationMode") == "All" else request.get("count", 1)
    return f"{count} of DeviceClass {request.get('deviceClassName')}"


def _last_message(events: Sequence[Mapping[str, Any]]) -> str:
    failed = [each for each in events if each.get("reason") == _NOT_MADE]
    last = max(failed, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime")), default={})
    return " ".join(str(last.get("message") or "").split())


def _age(pod: Object, now: dt.datetime) -> float:
    try:
        return (now - dt.datetime.fromisoformat(str(pod["metadata"].get("creationTimestamp")))).total_seconds()
    except (ValueError, TypeError):
        return 0.0
