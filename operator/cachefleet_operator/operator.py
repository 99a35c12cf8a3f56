"""The operator as a whole: leader election, what runs during a term of leadership, and the answers to the probes."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import aiohttp

from cachefleet_operator.certificates.certificate import CertificateError
from cachefleet_operator.certificates.trust import Trust
from cachefleet_operator.controlplane_client.client import ControlPlaneClient, FactsSource, NoControlPlane
from cachefleet_operator.controlplane_client.facts_cache import AT_ONCE, FactsCache, PollTimes
from cachefleet_operator.kube.leader import Leader, Timing
from cachefleet_operator.kube.objects import Api, Ref
from cachefleet_operator.metrics import Metrics
from cachefleet_operator.operator_times import OperatorTimes
from cachefleet_operator.pool_list import PoolList
from cachefleet_operator.reconcile.apply import Applier, NotLeadingError
from cachefleet_operator.reconcile.certificate_renewal import Certificates, certificates
from cachefleet_operator.reconcile.fleet_key import FleetKeyError
from cachefleet_operator.reconcile.reconciler import Outcome, PoolKey, Reconciler
from cachefleet_operator.settings import Settings
from cachefleet_operator.status.pool_assessment import judge
from cachefleet_operator.waiting import Waiting
from cachefleet_operator.watching.kopf_thread import Watch, WatchEndedError
from cachefleet_operator.watching.work_queue import WorkQueue
from cachefleet_runtime.backoff import backoff
from cachefleet_runtime.kubernetes import KubernetesError, Object, RefusedError
from cachefleet_runtime.tasks import restarting

log = logging.getLogger(__name__)


class Operator:
    """Reconciles all pools while it holds the Lease."""

    def __init__(
        self, api: Api, settings: Settings, metrics: Metrics, *, identity: str, times: OperatorTimes | None = None
    ) -> None:
        self._api = api
        self._settings = settings
        self._times = times or OperatorTimes()
        self._metrics = metrics
        ref = Ref("Lease", settings.operator_namespace, settings.lease_name)
        timing = Timing(self._times.lease_seconds, self._times.renew_seconds, self._times.retry_seconds)
        self._leader = Leader(
            api, ref, me=identity, timing=timing, clock=time.monotonic, today=_today, failed=metrics.lease_fails
        )
        self._applier = Applier(api, self._leader.holds)
        self._waiting = Waiting(metrics)
        self._pools = PoolList(api, settings.namespaces, self._waiting, look_seconds=self._times.discovery_seconds)
        self._trust = Trust()
        self._certificates: Certificates | None = None

    async def run(self) -> None:
        """Contend for the Lease and reconcile while it is held, until cancelled."""
        await self._leader.run(self._term)

    def alive(self) -> str:
        """Liveness: why this process is unhealthy, "" where it is healthy."""
        silent = time.monotonic() - self._leader.checked
        return f"the Lease loop has been silent for {silent:.0f} s" if silent > 2 * self._times.lease_seconds else ""

    def ready(self) -> str:
        """Readiness: why this process can neither reconcile nor stand by, "" where it can."""
        failure = self._leader.failure
        if failure and (silent := time.monotonic() - failure.since) >= self._times.renew_seconds:
            return f"the Lease cannot be read or written since {silent:.0f} s: {failure.message}"
        if not self._leader.answered:
            return "the Lease has not been read yet"
        return self._waiting.reason if self._leader.holds() else ""

    async def _term(self) -> None:
        self._metrics.leads(yes=True)
        try:
            await self._ensure_fleet_key()
            await self._ensure_certificates()
            await self._sessions()
        finally:
            self._waiting.become("")
            self._metrics.leads(yes=False)

    async def _sessions(self) -> None:
        """One session after another until cancelled. ``cancelling`` shows a cancellation that a session's end hid.

        What ends the watches is most often that the CRD is deleted; then it is waited for.
        """
        task, failures = asyncio.current_task(), 0
        while not (task and task.cancelling()):
            pools, started = await self._pools.wait(), time.monotonic()
            try:
                await self._session(pools)
            except* WatchEndedError as ended:
                self._waiting.become(f"{ended.exceptions[0]}; they are begun anew")
            short = time.monotonic() - started < self._times.retry_longest_seconds
            failures = failures + 1 if short else 0
            await asyncio.sleep(self._pause(failures))

    async def _session(self, pools: Sequence[Object]) -> None:
        """Watch, poll and reconcile until the CRD is removed. ``pools`` are those that exist at the beginning.

        A group of WatchEndedError where the watches end by themselves.
        """
        queue: WorkQueue[PoolKey] = WorkQueue(
            first=self._times.retry_first_seconds, longest=self._times.retry_longest_seconds
        )
        self._metrics.waiting.set_function(lambda: len(queue))
        try:
            async with self._source() as source:
                facts_cache = self._facts_cache(source, queue)
                for pool in pools:  # before the first reconciliation, so that fleets are complete
                    if found := judge(pool)[0]:
                        facts_cache.note(found)
                reconciler = self._reconciler(facts_cache, queue.add_later)
                await self._keep(queue, facts_cache, reconciler)
        finally:
            queue.close()
            self._metrics.not_watching()

    async def _keep(self, queue: WorkQueue[PoolKey], facts_cache: FactsCache, reconciler: Reconciler) -> None:
        watch = Watch(
            lambda key: self._noticed(queue, PoolKey(key)),
            self._settings.namespaces,
            stop_seconds=self._times.stop_seconds,
        )
        self._metrics.watching()
        async with asyncio.TaskGroup() as group:
            asking = restarting("facts", facts_cache.run, pause_seconds=0, failed=self._failed_to_ask)
            background = [group.create_task(watch.run()), group.create_task(asking)]
            background += [group.create_task(self._work(queue, reconciler)) for _ in range(self._settings.workers)]
            await self._resync(queue, facts_cache)
            for task in background:
                task.cancel()

    @asynccontextmanager
    async def _source(self) -> AsyncIterator[FactsSource]:
        chosen = self._settings
        if not chosen.admin_url:
            yield NoControlPlane()
            return
        async with aiohttp.ClientSession() as session:
            yield ControlPlaneClient(
                session,
                chosen.admin_url,
                token_file=chosen.admin_token_file,
                trusted=self._trust.context,
                at_once=AT_ONCE,
                failed=self._metrics.unanswered,
            )

    def _facts_cache(self, source: FactsSource, queue: WorkQueue[PoolKey]) -> FactsCache:
        chosen = self._times
        times = PollTimes(
            every=chosen.facts_seconds,
            timeout=chosen.facts_timeout_seconds,
            keep=chosen.facts_keep_seconds,
            figures_every=chosen.status_seconds,
        )
        return FactsCache(
            source,
            times=times,
            enqueue=lambda key: queue.add(PoolKey(key)),
            clock=time.monotonic,
            name_rules=self._settings.name_rules,
        )

    def _reconciler(
        self,
        facts_cache: FactsCache | None = None,
        later: Callable[[PoolKey, float], None] = lambda _key, _seconds: None,
    ) -> Reconciler:
        return Reconciler(
            self._api,
            self._applier,
            self._settings,
            today=_today,
            facts_cache=facts_cache,
            reporter=self._metrics,
            certificates=self._certificates,
            later=later,
            times=self._times,
        )

    def _noticed(self, queue: WorkQueue[PoolKey], key: PoolKey) -> None:
        self._metrics.noticed()
        queue.add(key)

    async def _resync(self, queue: WorkQueue[PoolKey], facts_cache: FactsCache) -> None:
        """Queue every pool each ``resync_seconds``, in case a watch missed an event. Returns when the CRD is gone."""
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            await self._renew_certificates()
            try:
                pools = await self._pools.keys()
            except KubernetesError as error:
                self._waiting.become(f"pools could not be listed: {error}")
                continue
            if pools is None:
                return
            self._waiting.become("")
            for key in {*pools, *facts_cache.pools(), *self._metrics.pools()}:
                queue.add(PoolKey(key))

    async def _ensure_fleet_key(self) -> None:
        """Create the fleet key's Secret: the control plane mounts it and may start before there is a pool."""
        for failures in itertools.count():
            try:
                await self._reconciler().fleet_key()
            except KubernetesError as error:
                self._waiting.become(f"the fleet key could not be read or made: {error}")
                await asyncio.sleep(self._pause(failures))
            except FleetKeyError:
                log.exception("pools that need it will fail until it is repaired")
                return
            else:
                return

    def _pause(self, failures: int) -> float:
        chosen = self._times
        return backoff(failures, first=chosen.retry_first_seconds, longest=chosen.retry_longest_seconds)

    async def _ensure_certificates(self) -> None:
        """Issue the control plane's certificate: it mounts it and may start before there is a pool."""
        self._certificates = certificates(
            self._api, self._applier, self._settings, self._trust, today=_today, expiries=self._metrics
        )
        while True:
            self._waiting.become(await self._renew_certificates())
            if not self._waiting.reason:
                return
            await asyncio.sleep(self._times.retry_seconds)

    async def _renew_certificates(self) -> str:
        """Why it is worth a retry; "" where it is done, or where somebody has to repair something."""
        try:
            if self._certificates:
                await self._certificates.renew()
        except (CertificateError, RefusedError):  # rights or a quota, say; pools are served all the same
            log.exception("certificates are not renewed until this is repaired")
        except KubernetesError as error:
            log.warning("certificates could not be read or made: %s", error)
            return f"certificates could not be read or made: {error}"
        return ""

    async def _work(self, queue: WorkQueue[PoolKey], reconciler: Reconciler) -> None:
        """Reconcile queued pools until cancelled. ``cancelling`` shows a cancellation that a request swallowed."""
        task = asyncio.current_task()
        while not (task and task.cancelling()):
            key = await queue.get()
            started = time.monotonic()
            outcome = await self._reconcile(reconciler, key)
            self._metrics.reconciled(outcome, time.monotonic() - started)
            queue.done(key, failed=outcome not in {Outcome.DONE, Outcome.WROTE, Outcome.GONE, Outcome.ELSEWHERE})

    def _failed_to_ask(self, _name: str) -> None:
        self._metrics.unanswered("unexpected")

    async def _reconcile(self, reconciler: Reconciler, key: PoolKey) -> str:
        try:
            return await reconciler.reconcile(key)
        except NotLeadingError:
            return "not_leading"
        except KubernetesError as error:
            log.warning("reconciling failed, trying again: %s", error, extra={"pool": key})
            return "failed"
        except Exception:  # a task's root: an error in one pool must not stop the others
            log.exception("reconciling failed", extra={"pool": key})
            return "error"


def _today() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
