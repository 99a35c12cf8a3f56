"""One operator at a time: a Lease, held by renewing it.

Theory of operation. Whoever holds the Lease writes its name into it every ``retry`` seconds. Others watch the record,
not its clock: they take over when it has not changed for as long as it promises, by their own monotonic clock, so
clock skew between machines does not matter. The holder counts from before each renewal's request: after ``renew``
seconds without success it has stopped, and since ``renew`` is less than the promised duration, it has stopped before
anyone may take over. A process that was frozen finds on waking that its time has passed: ``holds()`` is asked before
every write. All writes carry the resourceVersion that was read, so of two takers one gets a conflict.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from cachefleet_operator.kube.objects import Ref
from cachefleet_runtime.kubernetes import KubernetesError

log = logging.getLogger(__name__)


class Verdict(StrEnum):
    """What to do about the Lease now."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Record:
    """What a Lease says. ``stamp`` changes with every renewal."""

    holder: str = ""
    duration: int = 0
    transitions: int = 0
    acquired: str = ""
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """A record, or None where there is no Lease, and since when (monotonic seconds) it has been as it is."""

    record: Record | None
    since: float


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds; ``renew`` is less than ``duration``."""

    duration: int
    renew: float
    retry: float


class LeaseApi(Protocol):
    """What the loop needs of the API server."""

    async def get(self, ref: Ref) -> dict[str, Any] | None: ...
    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]: ...
    async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]: ...


def observe(previous: Observation | None, record: Record | None, now: float) -> Observation:
    """What is known of the record after reading it again."""
    if previous is not None and previous.record == record:
        return previous
    return Observation(record, now)


def decide(observation: Observation, me: str, now: float) -> Verdict:
    """What ``me`` does about what it sees."""
    record = observation.record
    if record is None:
        return Verdict.CREATE
    if record.holder == me:
        return Verdict.RENEW
    if not record.holder or now - observation.since >= record.duration:
        return Verdict.TAKE
    return Verdict.WAIT


def read(lease: dict[str, Any]) -> Record:
    """The record in a Lease object; a Lease made by hand may lack anything."""
    spec = lease.get("spec") or {}
    return Record(
        holder=spec.get("holderIdentity") or "",
        duration=spec.get("leaseDurationSeconds") or 0,
        transitions=spec.get("leaseTransitions") or 0,
        acquired=spec.get("acquireTime") or "",
        stamp=f"{spec.get('renewTime')}/{lease.get('metadata', {}).get('resourceVersion')}",
    )


class Leader:
    """Contests the Lease ``ref`` as ``me`` and runs a term whenever it holds it."""

    def __init__(
        self,
        api: LeaseApi,
        ref: Ref,
        *,
        me: str,
        timing: Timing,
        clock: Callable[[], float],
        today: Callable[[], dt.datetime],
    ) -> None:
        self._api = api
        self._ref = ref
        self._me = me
        self._timing = timing
        self._clock = clock
        self._today = today
        self._seen: Observation | None = None
        self._until = float("-inf")
        self.checked = clock()
        """When the loop last went round (monotonic seconds): a sign of life."""

    @property
    def answered(self) -> bool:
        """Whether the API server has told of the Lease yet."""
        return self._seen is not None

    def holds(self) -> bool:
        """Whether this process may write, now."""
        return self._clock() < self._until

    async def run(self, term: Callable[[], Awaitable[None]]) -> None:
        """Contest for ever. ``term`` runs while the Lease is held and is cancelled when it is lost."""
        try:
            while True:
                await self._try()
                if self.holds():
                    log.info("leading", extra={"identity": self._me})
                    await self._lead(term)
                    log.warning("no longer leading", extra={"identity": self._me})
                await asyncio.sleep(self._timing.retry)
        finally:
            await self._release()

    async def _lead(self, term: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.ensure_future(term())
        try:
            while self.holds() and not task.done():
                remaining = max(0.0, self._until - self._clock())
                await asyncio.wait({task}, timeout=min(self._timing.retry, remaining))
                if not task.done() and self.holds():
                    await self._try()
        finally:
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()  # a term that failed by itself ends the process

    async def _try(self) -> None:
        """One look at the Lease and, where that is the verdict, one write. Failing is not an event: time decides."""
        self.checked = started = self._clock()
        limit = max(0.05, self._until - started) if self.holds() else self._timing.renew
        try:
            async with asyncio.timeout(limit):
                if await self._step():
                    self._until = started + self._timing.renew
        except TimeoutError:
            log.warning("the Lease could not be renewed or taken in time")
        except KubernetesError as error:
            log.warning("the Lease could not be renewed or taken: %s", error)

    async def _step(self) -> bool:
        lease = await self._api.get(self._ref)
        now = self._clock()  # after the answer: what it tells of may have happened while it was on its way
        self._seen = observe(self._seen, read(lease) if lease else None, now)
        verdict = decide(self._seen, self._me, now)
        if verdict is Verdict.WAIT:
            self._until = float("-inf")  # someone else is named there
            return False
        if verdict is Verdict.CREATE:
            await self._api.create(self._manifest({}, Record(), fresh=True))
        else:
            await self._api.replace(self._manifest(lease or {}, read(lease or {}), fresh=verdict is Verdict.TAKE))
        return True

    def _manifest(self, lease: dict[str, Any], record: Record, *, fresh: bool) -> dict[str, Any]:
        now = self._today().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": self._me,
            "leaseDurationSeconds": self._timing.duration,
            "acquireTime": now if fresh else record.acquired or now,
            "renewTime": now,
            "leaseTransitions": record.transitions + (1 if fresh and lease else 0),
        }
        return {**self._ref.manifest(), **lease, "spec": spec}

    async def _release(self) -> None:
        """Let another take over at once, where that can be said in time."""
        if not self.holds():
            return
        self._until = float("-inf")
        try:
            async with asyncio.timeout(self._timing.retry):
                lease = await self._api.get(self._ref)
                if lease and read(lease).holder == self._me:
                    await self._api.replace({**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except (KubernetesError, TimeoutError) as error:
            log.warning("the Lease could not be released, it will run out: %s", error)
