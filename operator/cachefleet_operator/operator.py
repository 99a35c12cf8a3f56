"""The operator as a whole: leader election, what runs during a term of leadership, and the answers to the probes."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import aiohttp

from cachefleet_core.pool.spec import API_VERSION, KIND
from cachefleet_operator.certificates.certificate import CertificateError
from cachefleet_operator.certificates.trust import Trust
from cachefleet_operator.controlplane_client.client import ControlPlaneClient, FactsSource, NoControlPlane
from cachefleet_operator.controlplane_client.facts_cache import FactsCache, PollTimes
from cachefleet_operator.kube.leader import Leader, Timing
from cachefleet_operator.kube.objects import Api, Ref
from cachefleet_operator.metrics import Metrics
from cachefleet_operator.reconcile.apply import Applier, NotLeadingError
from cachefleet_operator.reconcile.certificate_renewal import Certificates, certificates
from cachefleet_operator.reconcile.reconciler import FleetKeyError, Outcome, PoolKey, Reconciler
from cachefleet_operator.settings import Settings
from cachefleet_operator.status.pool_assessment import judge
from cachefleet_operator.watching.kopf_thread import Watch
from cachefleet_operator.watching.work_queue import WorkQueue
from cachefleet_runtime.kubernetes import KubernetesError, Object, RefusedError
from cachefleet_runtime.tasks import restarting

log = logging.getLogger(__name__)

_MISSING = "the CRD prefixcachepools.cachefleet.io is not installed"


class Operator:
    """Reconciles all pools while it holds the Lease."""

    def __init__(self, api: Api, settings: Settings, metrics: Metrics, *, identity: str) -> None:
        self._api = api
        self._settings = settings
        self._metrics = metrics
        ref = Ref("Lease", settings.operator_namespace, settings.lease_name)
        timing = Timing(settings.lease_seconds, settings.renew_seconds, settings.retry_seconds)
        self._leader = Leader(api, ref, me=identity, timing=timing, clock=time.monotonic, today=_today)
        self._applier = Applier(api, self._leader.holds)
        self._waiting_for = ""
        self._trust = Trust()
        self._certificates: Certificates | None = None

    async def run(self) -> None:
        """Contend for the Lease and reconcile while it is held, until cancelled."""
        await self._leader.run(self._term)

    def alive(self) -> str:
        """Liveness: what is wrong with this process, "" where nothing is."""
        silent = time.monotonic() - self._leader.checked
        return f"the Lease loop has been silent for {silent:.0f} s" if silent > 2 * self._settings.lease_seconds else ""

    def ready(self) -> str:
        """Readiness: why this process can neither reconcile nor stand by, "" where it can."""
        if not self._leader.answered:
            return "the Lease has not been read yet"
        return self._waiting_for if self._leader.holds() else ""

    async def _term(self) -> None:
        self._metrics.leads(yes=True)
        try:
            await self._ensure_fleet_key()
            await self._ensure_certificates()
            while True:
                await self._session(await self._wait_for_crd())
        finally:
            self._metrics.leads(yes=False)

    async def _session(self, pools: Sequence[Object]) -> None:
        """Watch, poll and reconcile until the CRD is removed. ``pools`` are those that exist at the beginning."""
        queue: WorkQueue[PoolKey] = WorkQueue(
            first=self._settings.retry_first_seconds, longest=self._settings.retry_longest_seconds
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
            stop_seconds=self._settings.stop_seconds,
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
                at_once=chosen.facts_at_once,
                failed=self._metrics.unanswered,
            )

    def _facts_cache(self, source: FactsSource, queue: WorkQueue[PoolKey]) -> FactsCache:
        chosen = self._settings
        times = PollTimes(
            every=chosen.facts_seconds,
            timeout=chosen.facts_timeout_seconds,
            keep=chosen.facts_keep_seconds,
            figures_every=chosen.status_seconds,
            at_once=chosen.facts_at_once,
        )
        return FactsCache(
            source,
            times=times,
            enqueue=lambda key: queue.add(PoolKey(key)),
            clock=time.monotonic,
            name_rules=chosen.name_rules,
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
                pools = await self._pools()
            except KubernetesError as error:
                log.warning("pools could not be listed: %s", error)
                continue
            if pools is None:
                log.warning(_MISSING)
                return
            for key in {*pools, *map(PoolKey, facts_cache.pools() | self._metrics.pools())}:
                queue.add(key)

    async def _pools(self) -> list[PoolKey] | None:
        found = await self._documents()
        if found is None:
            return None
        return [PoolKey(f"{item['metadata']['namespace']}/{item['metadata']['name']}") for item in found]

    async def _documents(self) -> list[Object] | None:
        """All pools; None where the CRD is not installed. Namespaces that may not be read are left out."""
        found: list[Object] = []
        refused: list[RefusedError] = []
        namespaces = self._settings.namespaces or ("",)
        for namespace in namespaces:
            try:
                items = await self._api.list("PrefixCachePool", namespace, page=self._settings.list_page)
            except RefusedError as error:  # for instance a deleted namespace, and with it the right to read it
                refused.append(error)
                continue
            if items is None:
                return None
            found += [{"apiVersion": API_VERSION, "kind": KIND, **item} for item in items]
        if len(refused) == len(namespaces):
            raise refused[0]
        for each in refused:
            log.warning("the pools of a namespace are left out: %s", each)
        return found

    async def _wait_for_crd(self) -> list[Object]:
        while True:
            try:
                found = await self._documents()
                self._waiting_for = _MISSING if found is None else ""
                if found is not None:
                    return found
            except KubernetesError as error:
                self._waiting_for = f"pools could not be listed: {error}"
            log.warning(self._waiting_for)
            await asyncio.sleep(self._settings.discovery_seconds)

    async def _ensure_fleet_key(self) -> None:
        """Create the fleet key's Secret: the control plane mounts it and may start before there is a pool."""
        while True:
            try:
                await self._reconciler().fleet_key()
            except KubernetesError as error:
                self._waiting_for = f"the fleet key could not be read or made: {error}"
                log.warning(self._waiting_for)
                await asyncio.sleep(self._settings.retry_seconds)
            except FleetKeyError:
                log.exception("pools that need it will fail until it is repaired")
                return
            else:
                return

    async def _ensure_certificates(self) -> None:
        """Issue the control plane's certificate: it mounts it and may start before there is a pool."""
        self._certificates = certificates(
            self._api, self._applier, self._settings, self._trust, today=_today, expiries=self._metrics
        )
        while True:
            self._waiting_for = await self._renew_certificates()
            if not self._waiting_for:
                return
            await asyncio.sleep(self._settings.retry_seconds)

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
            queue.done(key, failed=outcome not in {Outcome.DONE, Outcome.WROTE, Outcome.GONE})

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
