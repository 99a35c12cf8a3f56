"""Pods that wait for volumes, and what events report of them (pure).

Neither a pod's conditions nor its containers tell: they are as those of a pod whose image is being pulled.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

MOUNT_SECONDS: Final = 20.0
"""How long a pod may have a node before events are asked why it has no container. Volumes that follow a claim, and
Secrets that are being made, come within that.
"""
LOOK_SECONDS: Final = 15.0
"""How often events are looked at again meanwhile: nothing announces them."""
_FAILED: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_PASSED: Final = frozenset({"Pulling", "Pulled", "Created", "Started", "BackOff", "Failed"})
"""Of containers, which begin once all volumes are there."""
_BEGINNING: Final = frozenset({"ContainerCreating", "PodInitializing"})


def waits(manifest: Mapping[str, Any], now: dt.datetime) -> float | None:
    """Seconds since a pod got a node while no container has started; None without a node, or once one has."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    if "deletionTimestamp" in metadata or status.get("phase") not in {None, "Pending"} or any(_begun(status)):
        return None
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") != "True":
        return None
    since = _moment(scheduled.get("lastTransitionTime"))
    return None if since is None else (now - since).total_seconds()


def failure(events: Sequence[Mapping[str, Any]]) -> str:
    """Reason and message of the last event that says that a volume cannot be had, "" where it has been since."""
    told = sorted((each for each in events if _last(each) is not None), key=lambda each: str(_last(each)))
    failed = [each for each in told if each.get("reason") in _FAILED]
    passed = [each for each in told if each.get("reason") in _PASSED]
    if not failed or (passed and str(_last(passed[-1])) > str(_last(failed[-1]))):
        return ""
    return f"{failed[-1]['reason']}: {' '.join(str(failed[-1].get('message') or '').split())}"


def _begun(status: Mapping[str, Any]) -> Iterator[bool]:
    for part in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(part) or ():
            waiting = (container.get("state") or {}).get("waiting")
            yield waiting is None or waiting.get("reason") not in _BEGINNING


def _last(event: Mapping[str, Any]) -> dt.datetime | None:
    """When an event happened last: repeated ones are counted in place, in one of two ways."""
    series = event.get("series") or {}
    stamps = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return max((moment for stamp in stamps if (moment := _moment(stamp)) is not None), default=None)


def _moment(stamp: Any) -> dt.datetime | None:
    try:
        return dt.datetime.fromisoformat(stamp)
    except (ValueError, TypeError):
        return None
