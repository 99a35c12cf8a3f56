"""Claims batches and runs them: in each replica, one batch of a tenant at a time, the oldest first."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cachefleet_controlplane.gateway.batches.batch_object import Batch
from cachefleet_controlplane.gateway.batches.batch_repository import LeaseLostError
from cachefleet_controlplane.gateway.batches.batch_run import BatchRun, RunParts
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.wire.errors import ApiError

logger = logging.getLogger(__name__)

COUNT_SECONDS: Final = 15.0
"""How often batches are counted for the metric."""


class BatchRunner:
    """Run ``run`` as a task; after ``leave`` nothing new begins."""

    def __init__(self, parts: RunParts, *, new_name: Callable[[], str] = lambda: secrets.token_hex(16)) -> None:
        self._parts = parts
        self._new_name = new_name
        self._runs: dict[str, asyncio.Task[None]] = {}
        """By tenant."""
        self._resting: dict[str, float] = {}
        """Until when no batch of a tenant is run, after a defect."""
        self._counted_at = float("-inf")

    def leave(self) -> None:
        """Begin no line any more: this replica stops, and another one goes on."""
        self._parts.leaving.set()

    async def run(self) -> None:
        """Claim and run batches until cancelled."""
        try:
            while True:
                with suppress(StoreError):  # counted where it was asked
                    await self._look()
                await asyncio.sleep(self._parts.bounds.poll_seconds)
        finally:
            for task in self._runs.values():
                task.cancel()
            await asyncio.gather(*self._runs.values(), return_exceptions=True)

    async def _look(self) -> None:
        self._see_ends()
        await self._count()
        while len(self._runs) < self._parts.bounds.at_once and not self._parts.leaving.is_set():
            name = self._new_name()
            batch = await self._claimed(name)
            if batch is None:
                return
            self._runs[batch.tenant] = asyncio.create_task(self._run(batch, name))

    def _see_ends(self) -> None:
        """Forget runs that have ended. After a defect its tenant's batches rest for a while, others go on."""
        now = asyncio.get_running_loop().time()
        self._resting = {tenant: until for tenant, until in self._resting.items() if until > now}
        for tenant, task in list(self._runs.items()):
            if not task.done():
                continue
            del self._runs[tenant]
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("the run of a batch failed unexpectedly", exc_info=error)
                self._resting[tenant] = now + self._parts.bounds.lease_seconds

    async def _claimed(self, name: str) -> Batch | None:
        now, passed = self._parts.wall_clock(), [*self._runs, *self._resting]
        until = now + self._parts.bounds.lease_seconds
        return await self._parts.store.ask(
            "claim", lambda store: store.claim(name, now=now, until=until, passed=passed)
        )

    async def _run(self, batch: Batch, name: str) -> None:
        try:
            await BatchRun(batch, name, self._parts).run()
        except LeaseLostError:
            logger.info("a batch is run by another replica now", extra={"batch": batch.id})
        except (StoreError, ApiError) as error:
            logger.warning("a batch rests for a while: %s", error, extra={"batch": batch.id})
        finally:
            await asyncio.shield(self._release(name))

    async def _release(self, name: str) -> None:
        """Let another runner go on at once; it can after the lease, else."""
        try:
            await self._parts.store.ask("release", lambda store: store.release(name))
        except StoreError:
            return

    async def _count(self) -> None:
        clock = asyncio.get_running_loop().time
        if clock() - self._counted_at >= COUNT_SECONDS:
            self._parts.metrics.batches(await self._parts.store.ask("count", lambda store: store.counts()))
            self._counted_at = clock()
