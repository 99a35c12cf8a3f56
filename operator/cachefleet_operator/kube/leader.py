"""Leader election with a Kubernetes Lease: one operator writes at a time.

Theory of operation. The holder renews the Lease every ``retry`` seconds. Others compare records, not timestamps: they
take over when the record has not changed for its duration by their own monotonic clock, so clock skew between machines
does not matter. The holder counts from before each renewal's request: after ``renew`` seconds without success it has
stopped, and since ``renew`` is less than the duration, it has stopped before another may take over. ``holds()`` is
checked before every write, so a process that was suspended does not write when it resumes. All writes carry the
resourceVersion that was last read or written, so of two contenders one gets a conflict. The holder renews what it wrote
last without reading it first; it reads where that fails.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from cachefleet_operator.kube.objects import Ref
from cachefleet_runtime.kubernetes import KubernetesError

log = logging.getLogger(__name__)

_ADVICE: Final[Mapping[int, str]] = {
    401: "; the API server does not take this pod's token, which is read again all the time: if its ServiceAccount was "
    "deleted and made anew, delete the pod, which then gets a token of the new one",
    403: "; the rights of the operator are missing: the chart makes them where rbac.create is true",
}
LOG_SECONDS: Final = 60.0
"""How often a failure that goes on is logged."""
_CHANGED: Final = frozenset({404, 409})
"""Statuses of a renewal whose Lease was deleted or changed since it was written."""


class LeaseVerdict(StrEnum):
    """What a contender does with the Lease now."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of a Lease, ``duration`` in seconds. ``stamp`` changes with every renewal."""

    holder: str = ""
    duration: int = 0
    transitions: int = 0
    acquired: str = ""
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """A record, None where there is no Lease, and since when (monotonic seconds) it has not changed."""

    record: Record | None
    since: float


@dataclass(frozen=True, slots=True)
class Timing:
    """Timing of the Lease, in seconds; ``renew`` is less than ``duration``. The values are in ``operator_times``."""

    duration: int
    renew: float
    retry: float


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the Lease cannot be read or written, and since when (monotonic seconds) without a break."""

    since: float
    reason: str
    """One word for it, as the API server has it."""
    message: str


Failed = Callable[[str, float], None]
"""Called after each try with the reason of its failure and the seconds since the first; "" and 0 after a success."""


class LeaseApi(Protocol):
    """The API requests of leader election."""

    async def get(self, ref: Ref) -> dict[str, Any] | None: ...
    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]: ...
    async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]: ...


def observe(previous: Observation | None, record: Record | None, now: float) -> Observation:
    """The observation after another read: the previous one where the record is the same, else one since ``now``."""
    if previous is not None and previous.record == record:
        return previous
    return Observation(record, now)


def decide(observation: Observation, me: str, now: float) -> LeaseVerdict:
    """What contender ``me`` does at ``now``: create, take over, renew or wait."""
    record = observation.record
    if record is None:
        return LeaseVerdict.CREATE
    if record.holder == me:
        return LeaseVerdict.RENEW
    if not record.holder or now - observation.since >= record.duration:
        return LeaseVerdict.TAKE
    return LeaseVerdict.WAIT


def read(lease: dict[str, Any]) -> Record:
    """The record in a Lease object; a Lease made by hand may lack any field."""
    spec = lease.get("spec") or {}
    return Record(
        holder=spec.get("holderIdentity") or "",
        duration=spec.get("leaseDurationSeconds") or 0,
        transitions=spec.get("leaseTransitions") or 0,
        acquired=spec.get("acquireTime") or "",
        stamp=f"{spec.get('renewTime')}/{lease.get('metadata', {}).get('resourceVersion')}",
    )


class Leader:
    """Contends for the Lease ``ref`` as ``me`` and runs a term while it holds it."""

    def __init__(
        self,
        api: LeaseApi,
        ref: Ref,
        *,
        me: str,
        timing: Timing,
        clock: Callable[[], float],
        today: Callable[[], dt.datetime],
        failed: Failed = lambda _reason, _seconds: None,
    ) -> None:
        self._failed = failed
        self._logged = float("-inf")
        self._api = api
        self._ref = ref
        self._me = me
        self._timing = timing
        self._clock = clock
        self._today = today
        self._seen: Observation | None = None
        self._written: dict[str, Any] | None = None
        """The Lease as this process last wrote it; None where another may have written since."""
        self._until = float("-inf")
        self._led = False
        """Whether the Lease may name this process."""
        self.checked = clock()
        """When the loop last ran (monotonic seconds), for the liveness probe."""
        self.failure: Failure | None = None
        """Why the Lease could not be read or written at the last try; None where it could."""

    @property
    def answered(self) -> bool:
        """Whether the Lease has been read at least once."""
        return self._seen is not None

    def holds(self) -> bool:
        """Whether this process holds the Lease now and so may write."""
        return self._clock() < self._until

    async def run(self, term: Callable[[], Awaitable[None]]) -> None:
        """Contend until cancelled. ``term`` runs while the Lease is held and is cancelled when it is lost."""
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
        """Read the Lease and, where the verdict says so, write it. A failure ends nothing: only elapsed time does."""
        self.checked = started = self._clock()
        limit = max(0.05, self._until - started) if self.holds() else self._timing.renew
        try:
            async with asyncio.timeout(limit):
                if await self._step():
                    self._until = started + self._timing.renew
        except TimeoutError:
            self._fails("Timeout", f"no answer within {limit:.1f} s")
        except KubernetesError as error:
            self._fails(error.reason, f"{error}{_ADVICE.get(error.status, '')}")
        else:
            self._works()

    def _fails(self, reason: str, message: str) -> None:
        now, before = self._clock(), self.failure
        self.failure = Failure(before.since if before else now, reason, message)
        if before is None or before.reason != reason or now - self._logged >= LOG_SECONDS:
            self._logged = now
            log.warning("the Lease could not be renewed or taken: %s", message)
        self._failed(reason, now - self.failure.since)

    def _works(self) -> None:
        if self.failure:
            log.info("the Lease can be read again, after %.0f s", self._clock() - self.failure.since)
        self.failure = None
        self._failed("", 0.0)

    async def _step(self) -> bool:
        if self._written and self.holds() and await self._renew(self._written):
            return True
        lease = await self._api.get(self._ref)
        now = self._clock()  # after the answer: the Lease may have changed while the request was under way
        self._seen = observe(self._seen, read(lease) if lease else None, now)
        verdict = decide(self._seen, self._me, now)
        if verdict is LeaseVerdict.WAIT:
            self._until = float("-inf")  # another holder is named
            return False
        if verdict is LeaseVerdict.CREATE:
            self._led = True
            self._written = await self._api.create(self._manifest({}, Record(), fresh=True))
        else:
            await self._write(self._manifest(lease or {}, read(lease or {}), fresh=verdict is LeaseVerdict.TAKE))
        return True

    async def _renew(self, lease: dict[str, Any]) -> bool:
        """Whether the Lease, as it was written last, could be renewed; not where it was changed or deleted since."""
        try:
            await self._write(self._manifest(lease, read(lease), fresh=False))
        except KubernetesError as error:
            if error.status not in _CHANGED:
                raise
            return False
        return True

    async def _write(self, manifest: dict[str, Any]) -> None:
        self._written, self._led = None, True  # also where this is cut off: it may have been written all the same
        self._written = await self._api.replace(manifest)

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
        """Clear the holder so that another may take over at once; give up after ``retry`` seconds.

        Also where it could not be renewed lately: it may name this process still.
        """
        if not self._led:
            return
        self._until = float("-inf")
        try:
            async with asyncio.timeout(self._timing.retry):
                lease = self._written or await self._api.get(self._ref)
                if lease and read(lease).holder == self._me:
                    await self._write({**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except (KubernetesError, TimeoutError) as error:
            log.warning("the Lease could not be released, it will run out: %s", error)
