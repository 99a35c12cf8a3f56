"""InferenceObjectives of the Gateway API Inference Extension: which priority requests have that name one by a header.

A cluster need not have them: where their CRD is missing it is looked for from time to time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.kubernetes_objects import ObjectError, Objects, Resource
from cachefleet_controlplane.pools.kubernetes_source import Feed, WatchBounds
from cachefleet_runtime.kubernetes import KubernetesApi, KubernetesError, Object

logger = logging.getLogger(__name__)

GROUP: Final = "inference.networking.x-k8s.io"
MISSING_SECONDS: Final = 60.0
"""How often their CRD is looked for."""
_LASTING: Final = frozenset({403, 404})
"""Statuses of what is not installed, or not permitted."""
POOL_KIND: Final = "InferencePool"


class _PoolRef(msgspec.Struct, frozen=True):
    name: str
    kind: str = POOL_KIND


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    pool_ref: _PoolRef
    priority: int | None = None


class _Objective(msgspec.Struct, frozen=True):
    spec: _Spec


def objective(item: Object) -> _Spec:
    """What an object says; ObjectError where it says nothing."""
    try:
        return msgspec.convert(item, _Objective).spec
    except msgspec.ValidationError as error:
        raise ObjectError(str(error)) from error


OBJECTIVES: Final = Resource(f"{GROUP}/v1alpha2", "inferenceobjectives", objective)


class InferenceObjectives:
    """Those of the watched namespaces, as they were read last; none where no source reads any."""

    def __init__(self) -> None:
        self._read: list[Objects[_Spec]] = []

    def __bool__(self) -> bool:
        return bool(self._read) and any(objects.items() for objects in self._read)

    def priority(self, namespace: str, name: str, pools: Collection[str]) -> int | None:
        """The priority of the objective of a name for pools of these names, 0 where it says none, the higher the
        sooner; None where there is no such objective.
        """
        key = f"{namespace}/{name}"
        for objects in self._read:
            spec = objects.items().get(key)
            if spec is not None and spec.pool_ref.kind == POOL_KIND and spec.pool_ref.name in pools:
                return spec.priority or 0
        return None

    async def follow(
        self,
        api: KubernetesApi,
        *,
        metrics: Metrics,
        namespaces: Sequence[str] = (),
        bounds: WatchBounds | None = None,
        missing_seconds: float = MISSING_SECONDS,
    ) -> None:
        """Keep them as the API server has them, until cancelled; ``namespaces`` none means all."""
        scopes, limits = namespaces or ("",), bounds or WatchBounds()
        self._read = [Objects(OBJECTIVES) for _ in scopes]
        async with asyncio.TaskGroup() as group:
            for objects, scope in zip(self._read, scopes, strict=True):
                feed = Feed(
                    *(objects, scope),
                    api=api,
                    metrics=metrics,
                    bounds=limits,
                    chance=random.random,
                    changed=asyncio.Event(),
                )
                group.create_task(_once_served(feed, api, seconds=missing_seconds, bounds=limits))


async def _once_served(feed: Feed, api: KubernetesApi, *, seconds: float, bounds: WatchBounds) -> None:
    told = ""
    while (problem := await _problem(str(feed), api, bounds)) is not None:
        if str(problem) != told:
            logger.info("InferenceObjectives are not read, they are looked for again: %s", problem)
            told = str(problem)
        await asyncio.sleep(seconds if problem.status in _LASTING else bounds.longest_pause_seconds)
    await feed.run()


async def _problem(path: str, api: KubernetesApi, bounds: WatchBounds) -> KubernetesError | None:
    """Why they cannot be read, None where they can."""
    try:
        await api.get(path, {"limit": "1"}, seconds=bounds.request_seconds)
    except KubernetesError as error:
        return error
    return None
