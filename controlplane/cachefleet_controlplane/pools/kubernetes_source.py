"""Pools from Kubernetes: PrefixCachePools and the EndpointSlices of their workers, listed and then watched.

Theory of operation. Each resource, in each namespace, has a feed of its own. A feed lists everything, then watches from
the list's version. The server ends each watch before ``inactivity_seconds`` are over, so a watch that is silent for
longer is a broken connection. A watch that ended is continued from its last version; after an error, a silence or a 410
everything is listed again. While the API server is unreachable the last good state stays, and so do endpoints whose
slices went out of sight, for a while (``recent_endpoints``).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.kubernetes_objects import POOLS, SLICES, Objects, PoolEndpoints, merge
from cachefleet_controlplane.pools.recent_endpoints import RecentEndpoints
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_core.pool.model_names import Claim, claim_in
from cachefleet_runtime.backoff import backoff
from cachefleet_runtime.kubernetes import (
    LIST_PAGE,
    WATCH_INACTIVITY_SECONDS,
    WATCH_SHARE,
    KubernetesApi,
    KubernetesError,
    Object,
)

logger = logging.getLogger(__name__)

_GATHER_SECONDS: Final = 0.02
"""Changes within this time are given as one state."""


@dataclass(frozen=True, slots=True)
class WatchBounds:
    """Times in seconds; ``page`` is the objects per page of a list."""

    inactivity_seconds: float = WATCH_INACTIVITY_SECONDS
    request_seconds: float = 10.0
    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 8.0
    page: int = LIST_PAGE


class KubePoolSource:
    """A PoolSource over the Kubernetes API, read-only. One ``watch()`` at a time."""

    def __init__(
        self,
        api: KubernetesApi,
        *,
        metrics: Metrics,
        namespaces: Sequence[str] = (),
        bounds: WatchBounds | None = None,
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
        tls: bool | None = None,
    ) -> None:
        """``tls``: see ``merge``."""
        self._tls = tls
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._recent = RecentEndpoints(clock)
        scopes = namespaces or ("",)
        self._pools = [Objects(POOLS) for _ in scopes]
        self._slices = [Objects(SLICES) for _ in scopes]
        spread: list[tuple[Objects[Any], str]] = [*zip(self._pools, scopes, strict=True)]
        spread += zip(self._slices, scopes, strict=True)
        limits = bounds or WatchBounds()
        self._feeds = [
            Feed(objects, scope, api=api, metrics=metrics, bounds=limits, chance=chance, changed=self._changed)
            for objects, scope in spread
        ]

    @property
    def problem(self) -> str:
        """The problems of all feeds; "" while all is well."""
        return "; ".join(sorted({feed.problem for feed in self._feeds} - {""}))

    @property
    def unread(self) -> tuple[Claim, ...]:
        """The claims to model names of pools that cannot be read, by key."""
        found = (claim_in(item) for objects in self._pools for item in objects.unread.values())
        return tuple(sorted((claim for claim in found if claim is not None), key=lambda claim: claim.pool))

    async def watch(self) -> AsyncIterator[tuple[PoolView, ...]]:
        """The state once every feed has listed its objects, then at each change."""
        tasks = [asyncio.create_task(feed.run(), name=f"watch {feed}") for feed in self._feeds]
        try:
            async for picture in self._pictures():
                yield picture
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pictures(self) -> AsyncIterator[tuple[PoolView, ...]]:
        last: tuple[tuple[PoolView, ...], tuple[Claim, ...]] | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._recent.ends_in()):
                    await self._changed.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            self._changed.clear()
            if all(feed.listed for feed in self._feeds) and (state := (self._picture(), self.unread)) != last:
                last = state
                self._metrics.pools_updated()
                yield state[0]

    def _picture(self) -> tuple[PoolView, ...]:
        pools = [pool for objects in self._pools for pool in objects.values()]
        slices: dict[str, PoolEndpoints] = {key: part for each in self._slices for key, part in each.items().items()}
        kept = self._recent.with_kept(slices, pools={one.pool.key for one in pools})
        return merge(pools, kept, tls=self._tls)


class Feed:
    """One resource in one namespace ("" for all), kept up to date until cancelled."""

    def __init__(
        self,
        objects: Objects[Any],
        namespace: str,
        *,
        api: KubernetesApi,
        metrics: Metrics,
        bounds: WatchBounds,
        chance: Callable[[], float],
        changed: asyncio.Event,
    ) -> None:
        self._objects = objects
        self._path = objects.resource.path(namespace)
        self._api = api
        self._metrics = metrics
        self._bounds = bounds
        self._chance = chance
        self._changed = changed
        self._failures = 0
        self.problem = ""

    def __str__(self) -> str:
        return self._path

    @property
    def listed(self) -> bool:
        """Whether it has listed its objects at least once."""
        return self._objects.listed

    async def run(self) -> None:
        """List and watch until cancelled; after an error again, with growing pauses."""
        while True:
            try:
                await self._list()
                while True:
                    async with paced(self._bounds.first_pause_seconds):
                        await self._watch()
            except KubernetesError as error:
                self._failed(_kind(error), str(error))
            except Exception as error:  # a task's root: the other watches go on
                logger.exception("watch failed unexpectedly", extra={"path": self._path})
                self._metrics.task_error("watch")
                self._failed("unexpected", type(error).__name__)
            await asyncio.sleep(pause(self._failures, self._bounds, self._chance()))

    async def _list(self) -> None:
        items: list[Object] = []
        token = ""
        while True:
            query = self._objects.resource.list_query(limit=self._bounds.page, token=token)
            page = await self._api.get(self._path, query, seconds=self._bounds.request_seconds)
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            token = metadata.get("continue", "")
            if not token:
                break
        known = self._objects.invalid
        self._objects.replace(items, str(metadata.get("resourceVersion", "")))
        self._tell_invalid(known)
        self._well()
        self._changed.set()

    async def _watch(self) -> None:
        silence = self._bounds.inactivity_seconds
        query = self._objects.resource.watch_query(
            version=self._objects.version, seconds=max(1, int(silence * WATCH_SHARE))
        )
        async for event in self._api.watch(self._path, query, silence_seconds=silence):
            invalid = dict(self._objects.invalid)
            if self._objects.apply(event):
                self._tell_invalid(invalid)
                self._changed.set()
        self._well()

    def _well(self) -> None:
        if self.problem:
            logger.info("watch works again", extra={"path": self._path})
        self.problem = ""
        self._failures = 0

    def _failed(self, kind: str, problem: str) -> None:
        self._failures += 1
        self._metrics.pool_source_error(kind)
        if kind == "gone":  # expected after a compaction: everything is listed again
            return
        told, self.problem = self.problem, f"{self._path}: {problem}"
        if told != self.problem:
            logger.warning("watch fails, the last pools that were read stay in force: %s", self.problem)

    def _tell_invalid(self, before: dict[str, str]) -> None:
        for key, why in self._objects.invalid.items():
            if before.get(key) != why:
                self._metrics.pool_source_error("invalid")
                logger.warning("an object cannot be used: %s", why, extra={"path": self._path, "object": key})


@asynccontextmanager
async def paced(seconds: float) -> AsyncIterator[None]:
    """Take at least ``seconds`` on success, so that a server that ends watches at once is not flooded."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    yield
    await asyncio.sleep(end - loop.time())


def pause(failures: int, bounds: WatchBounds, chance: float) -> float:
    """Seconds before the next try: doubling from the first pause to the longest, plus up to half of that at random."""
    seconds = backoff(failures - 1, first=bounds.first_pause_seconds, longest=bounds.longest_pause_seconds)
    return seconds * (1 + chance / 2)


def _kind(error: KubernetesError) -> str:
    if error.gone:
        return "gone"
    return {0: "unreachable", 401: "denied", 403: "denied", 404: "missing"}.get(error.status, "failing")
