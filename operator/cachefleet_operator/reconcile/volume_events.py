"""Reads the events of pods that have a node and no container: only they say that a volume cannot be had."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Sequence
from typing import Final, Protocol

from cachefleet_operator.status.volume_failures import MOUNT_SECONDS, failure, waits
from cachefleet_runtime.kubernetes import Object, RefusedError

MAX_PODS: Final = 4
"""Pods of one pool that are asked about at a time: what ails one ails most."""


class EventApi(Protocol):
    """The request that this needs."""

    async def list(
        self, kind: str, namespace: str, *, page: int, selector: str = "", fields: str = ""
    ) -> list[Object] | None: ...


async def volume_failures(api: EventApi, pods: Sequence[Object], now: dt.datetime, *, page: int) -> dict[str, str]:
    """What keeps volumes from pods, by their names; KubernetesErrors but refusals, which leave it unknown."""
    late = [pod["metadata"] for pod in pods if (waits(pod, now) or 0.0) >= MOUNT_SECONDS][:MAX_PODS]
    found = await asyncio.gather(*(_of(api, metadata, page) for metadata in late))
    return {metadata["name"]: words for metadata, words in zip(late, found, strict=True) if words}


async def _of(api: EventApi, metadata: Object, page: int) -> str:
    fields = f"involvedObject.uid={metadata.get('uid', '')}"
    try:
        events = await api.list("Event", metadata["namespace"], page=page, fields=fields)
    except RefusedError:  # rights that somebody else grants may be of an earlier version
        return ""
    return failure(events or [])
