"""The operator as a whole: what one term of leadership does, and what the probes say about it."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time

from cachefleet_operator.api import Api, ApiError, Ref
from cachefleet_operator.apply import Applier, NotLeadingError
from cachefleet_operator.leader import Leader, Timing
from cachefleet_operator.metrics import Metrics
from cachefleet_operator.queue import WorkQueue
from cachefleet_operator.reconcile import FleetKeyError, Outcome, PoolKey, Reconciler
from cachefleet_operator.settings import Settings
from cachefleet_operator.watch import Watch

log = logging.getLogger(__name__)

_MISSING = "the CRD prefixcachepools.cachefleet.io is not installed"


class Operator:
    """Leads when it may, and then keeps every pool true."""

    def __init__(self, api: Api, settings: Settings, metrics: Metrics, *, identity: str) -> None:
        self._api = api
        self._settings = settings
        self._metrics = metrics
        ref = Ref("Lease", settings.operator_namespace, settings.lease_name)
        timing = Timing(settings.lease_seconds, settings.renew_seconds, settings.retry_seconds)
        self._leader = Leader(api, ref, me=identity, timing=timing, clock=time.monotonic, today=_today)
        self._reconciler = Reconciler(api, Applier(api, self._leader.holds), settings, today=_today)
        self._waiting_for = ""

    async def run(self) -> None:
        """Until cancelled."""
        await self._leader.run(self._term)

    def alive(self) -> str:
        """What is wrong with this process, "" where nothing is."""
        silent = time.monotonic() - self._leader.checked
        return f"the Lease loop has been silent for {silent:.0f} s" if silent > 2 * self._settings.lease_seconds else ""

    def ready(self) -> str:
        """Why this process cannot do its part, "" where it can: leading, or standing by."""
        if not self._leader.answered:
            return "the Lease has not been read yet"
        return self._waiting_for if self._leader.holds() else ""

    async def _term(self) -> None:
        self._metrics.leading.set(1)
        try:
            await self._ensure_fleet_key()
            while True:
                await self._wait_for_crd()
                await self._session()
        finally:
            self._metrics.leading.set(0)

    async def _session(self) -> None:
        """Watch and reconcile until the CRD goes away."""
        queue: WorkQueue[PoolKey] = WorkQueue(
            first=self._settings.retry_first_seconds, longest=self._settings.retry_longest_seconds
        )
        self._metrics.waiting.set_function(lambda: len(queue))
        watch = Watch(
            lambda key: self._noticed(queue, PoolKey(key)),
            self._settings.namespaces,
            stop_seconds=self._settings.stop_seconds,
        )
        try:
            async with asyncio.TaskGroup() as group:
                background = [group.create_task(watch.run())]
                background += [group.create_task(self._work(queue)) for _ in range(self._settings.workers)]
                await self._resync(queue)
                for task in background:
                    task.cancel()
        finally:
            queue.close()

    def _noticed(self, queue: WorkQueue[PoolKey], key: PoolKey) -> None:
        self._metrics.noticed()
        queue.add(key)

    async def _resync(self, queue: WorkQueue[PoolKey]) -> None:
        """Look at every pool now and then: whatever a watch missed is found. Returns when the CRD is gone."""
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            try:
                pools = await self._pools()
            except ApiError as error:
                log.warning("pools could not be listed: %s", error)
                continue
            if pools is None:
                log.warning(_MISSING)
                return
            for key in pools:
                queue.add(key)

    async def _pools(self) -> list[PoolKey] | None:
        found: list[PoolKey] = []
        for namespace in self._settings.namespaces or ("",):
            items = await self._api.list("PrefixCachePool", namespace, page=self._settings.list_page)
            if items is None:
                return None
            found += [PoolKey(f"{item['metadata']['namespace']}/{item['metadata']['name']}") for item in items]
        return found

    async def _wait_for_crd(self) -> None:
        self._waiting_for = _MISSING
        while True:
            try:
                if await self._pools() is not None:
                    break
                log.warning(_MISSING)
            except ApiError as error:
                log.warning("pools could not be listed: %s", error)
            await asyncio.sleep(self._settings.discovery_seconds)
        self._waiting_for = ""

    async def _ensure_fleet_key(self) -> None:
        """So that the control plane, which mounts it, can start before there is a pool."""
        while True:
            try:
                await self._reconciler.fleet_key()
            except ApiError as error:
                log.warning("the fleet key could not be read or made: %s", error)
                await asyncio.sleep(self._settings.retry_seconds)
            except FleetKeyError:
                log.exception("pools that need it will fail until it is repaired")
                return
            else:
                return

    async def _work(self, queue: WorkQueue[PoolKey]) -> None:
        while True:
            key = await queue.get()
            started = time.monotonic()
            outcome = await self._reconcile(key)
            self._metrics.reconciled(outcome, time.monotonic() - started)
            queue.done(key, failed=outcome not in {Outcome.DONE, Outcome.WROTE, Outcome.GONE})

    async def _reconcile(self, key: PoolKey) -> str:
        try:
            return await self._reconciler.reconcile(key)
        except NotLeadingError:
            return "not_leading"
        except ApiError as error:
            log.warning("reconciling failed, trying again: %s", error, extra={"pool": key})
            return "failed"
        except Exception:  # a task's root: one pool's trouble is not the others'
            log.exception("reconciling failed", extra={"pool": key})
            return "error"


def _today() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
