"""What an operator does besides reconciling."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import cast

import pytest
from prometheus_client import generate_latest

from cachefleet_operator.controlplane_client.facts_cache import no_facts
from cachefleet_operator.kube.objects import Api, Ref
from cachefleet_operator.metrics import Metrics
from cachefleet_operator.operator import Operator
from cachefleet_operator.operator_times import OperatorTimes
from cachefleet_operator.reconcile.apply import Applier
from cachefleet_operator.reconcile.reconciler import Outcome, PoolKey, Reconciler
from cachefleet_operator.watching.kopf_thread import Watch, WatchEndedError, WatchError
from cachefleet_operator.watching.work_queue import WorkQueue
from cachefleet_runtime.kubernetes import Object, RefusedError, RetryableError
from tests.operator.pools import SETTINGS, document, pool
from tests.operator.store import Store


class Everywhere(Store):
    """Lists of all namespaces, as the API server has them."""

    async def list(
        self, kind: str, namespace: str, *, page: int, selector: str = "", fields: str = ""
    ) -> list[dict[str, object]] | None:
        return await super().list(kind, namespace or "serving", page=page, selector=selector, fields=fields)


class Partly(Store):
    """Where one namespace may not be read."""

    async def list(
        self, kind: str, namespace: str, *, page: int, selector: str = "", fields: str = ""
    ) -> list[dict[str, object]] | None:
        if namespace == "gone":
            raise RefusedError(403, "Forbidden", "prefixcachepools is forbidden")
        return await super().list(kind, namespace, page=page, selector=selector, fields=fields)


async def test_a_namespace_that_may_not_be_read_keeps_no_other_back() -> None:
    settings = SETTINGS.model_copy(update={"namespaces": ("gone", "serving")})
    operator = Operator(cast("Api", Partly(document())), settings, Metrics("1"), identity="me")
    assert await operator._pools.keys() == ["serving/demo"]
    settings = SETTINGS.model_copy(update={"namespaces": ("gone",)})
    with pytest.raises(RefusedError):
        await Operator(cast("Api", Partly(document())), settings, Metrics("1"), identity="me")._pools.keys()


async def test_what_it_waits_for_is_told_by_the_probe() -> None:
    asked = asyncio.Event()

    class Locked(Store):
        async def get(self, ref: Ref) -> Object | None:
            if operator._waiting.reason:
                asked.set()
            raise RefusedError(403, "Forbidden", f"secrets is forbidden: {ref}")

    times = OperatorTimes(retry_first_seconds=0.01)
    operator = Operator(cast("Api", Locked(document())), SETTINGS, Metrics("1"), identity="me", times=times)
    task = asyncio.create_task(operator._ensure_fleet_key())
    await asyncio.wait_for(asked.wait(), 30)
    task.cancel()
    assert "secrets is forbidden" in operator._waiting.reason


async def test_who_cannot_use_the_lease_is_not_ready_whether_it_leads_or_stands_by() -> None:
    store, metrics = Store(), Metrics("1")
    operator = Operator(cast("Api", store), SETTINGS, metrics, identity="me")
    await operator._leader._try()
    assert operator.ready() == ""

    def refuse(_verb: str, _ref: Ref) -> None:
        raise RetryableError(401, "Unauthorized", "Unauthorized")

    store.before = refuse
    await operator._leader._try()
    assert operator.ready() == "", "a moment is nothing"
    failure = operator._leader.failure
    assert failure is not None
    operator._leader.failure = replace(failure, since=failure.since - OperatorTimes().renew_seconds)
    assert operator.ready().startswith("the Lease cannot be read or written since 10 s: 401 Unauthorized")
    assert operator.alive() == ""
    failing = {"reason": "Unauthorized"}
    assert metrics.registry.get_sample_value("cachefleet_operator_lease_failing_seconds", failing) is not None
    store.before = lambda _verb, _ref: None
    await operator._leader._try()
    assert operator.ready() == ""
    assert metrics.registry.get_sample_value("cachefleet_operator_lease_failing_seconds", failing) is None


async def test_a_refused_fleet_key_is_asked_for_again_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = list[float]()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            store.before = lambda _verb, _ref: None

    def refuse(_verb: str, ref: Ref) -> None:
        raise RefusedError(403, "Forbidden", f"secrets is forbidden: {ref}")

    store, metrics = Store(), Metrics("1")
    store.before = refuse
    operator = Operator(cast("Api", store), SETTINGS, metrics, identity="me")
    operator._applier = Applier(store, lambda: True)
    monkeypatch.setattr(asyncio, "sleep", pause)
    await operator._ensure_fleet_key()
    assert pauses == [0.5, 1.0, 2.0]
    assert Ref("Secret", "ops", "cachefleet-fleet-key") in store.objects
    assert metrics.registry.get_sample_value("cachefleet_operator_waiting") == 1  # until pools are listed


async def test_watches_that_end_by_themselves_are_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, told = Metrics("1"), list[str]()
    times = OperatorTimes(retry_first_seconds=0.01)
    operator = Operator(cast("Api", Everywhere(document())), SETTINGS, metrics, identity="me", times=times)

    async def fails(_watch: Watch) -> None:
        told.append(operator._waiting.reason)
        if len(told) < 3:
            raise WatchEndedError("the watches failed: NotFound")
        begun.set()
        await asyncio.Event().wait()

    begun = asyncio.Event()
    monkeypatch.setattr(Watch, "run", fails)
    task = asyncio.create_task(operator._sessions())
    await asyncio.wait_for(begun.wait(), 30)
    assert told == ["", "", ""], "once pools could be listed"
    task.cancel()
    await asyncio.wait({task}, timeout=30)
    assert task.cancelled()


async def test_watches_that_do_not_stop_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(_watch: Watch) -> None:
        raise WatchError("the watches did not stop within 3 s")

    monkeypatch.setattr(Watch, "run", hangs)
    operator = Operator(cast("Api", Everywhere(document())), SETTINGS, Metrics("1"), identity="me")
    with pytest.raises(ExceptionGroup) as raised:
        await operator._sessions()
    assert raised.group_contains(WatchError)


async def test_the_crd_is_waited_for_and_that_is_told() -> None:
    class Bare(Everywhere):
        served = False

        async def list(
            self, kind: str, namespace: str, *, page: int, selector: str = "", fields: str = ""
        ) -> list[dict[str, object]] | None:
            asked.set()
            found = await super().list(kind, namespace, page=page, selector=selector, fields=fields)
            return found if self.served else None

    asked, store, metrics = asyncio.Event(), Bare(document()), Metrics("1")
    times = OperatorTimes(discovery_seconds=0.01)
    operator = Operator(cast("Api", store), SETTINGS, metrics, identity="me", times=times)
    task = asyncio.create_task(operator._pools.wait())
    for _ in range(2):
        asked.clear()
        await asyncio.wait_for(asked.wait(), 30)
    assert operator._waiting.reason == "the CRD prefixcachepools.cachefleet.io is not installed"
    assert metrics.registry.get_sample_value("cachefleet_operator_waiting") == 1
    store.served = True
    assert len(await asyncio.wait_for(task, 30)) == 1
    assert operator._waiting.reason == ""
    assert metrics.registry.get_sample_value("cachefleet_operator_waiting") == 0


async def test_a_resync_looks_also_at_pools_that_went_while_no_watch_told() -> None:
    metrics, facts_cache = Metrics("1"), no_facts()
    settings = SETTINGS.model_copy(update={"resync_seconds": 0.01})
    operator = Operator(cast("Api", Everywhere(document())), settings, metrics, identity="me")
    metrics.conditions("serving", "shown", [{"type": "Ready", "status": "True"}])
    facts_cache.note(pool(name="noted"))
    queue: WorkQueue[PoolKey] = WorkQueue(first=1, longest=1)
    task = asyncio.create_task(operator._resync(queue, facts_cache))
    found = {await asyncio.wait_for(queue.get(), 30) for _ in range(3)}
    task.cancel()
    assert found == {"serving/demo", "serving/shown", "serving/noted"}


async def test_a_worker_ends_though_a_request_has_swallowed_its_cancellation() -> None:
    """As where an answer's time is over at that moment: without the worker's end the term would never end."""
    asked = asyncio.Event()

    class Swallowing:
        async def reconcile(self, _key: PoolKey) -> Outcome:
            asked.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(600)
            raise RetryableError(0, "NoAnswer", "TimeoutError: ")

    operator = Operator(cast("Api", Everywhere(document())), SETTINGS, Metrics("1"), identity="me")
    queue: WorkQueue[PoolKey] = WorkQueue(first=600, longest=600)
    queue.add(PoolKey("serving/demo"))
    task = asyncio.create_task(operator._work(queue, cast("Reconciler", Swallowing())))
    await asyncio.wait_for(asked.wait(), 30)
    task.cancel()
    await asyncio.wait({task}, timeout=30)
    queue.close()
    assert task.done()


@pytest.mark.parametrize("kind", ["Secret", "ConfigMap"])
async def test_a_refused_certificate_keeps_no_pool_waiting(kind: str) -> None:
    """As by a quota, or where the rights are those of an earlier release."""

    class Limited(Everywhere):
        async def create(self, manifest: Object) -> Object:
            return await super().create(self._checked(manifest))

        async def apply(self, manifest: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
            return await super().apply(self._checked(manifest), subresource=subresource, dry_run=dry_run)

        def _checked(self, manifest: Object) -> Object:
            if manifest["kind"] == kind:
                raise RefusedError(403, "Forbidden", "exceeded quota")
            return manifest

    settings = SETTINGS.model_copy(update={"tls": "issued"})
    operator = Operator(cast("Api", Limited()), settings, Metrics("1"), identity="me")
    operator._applier = Applier(operator._api, lambda: True)
    await asyncio.wait_for(operator._ensure_certificates(), 60)
    assert not operator._waiting.reason


async def test_certificates_that_fail_for_the_moment_are_tried_again_at_once() -> None:
    asked = []

    class Slow(Everywhere):
        async def get(self, ref: Ref) -> Object | None:
            asked.append(ref)
            if len(asked) == 1:
                raise RetryableError(0, "NoAnswer", "TimeoutError: ")
            return await super().get(ref)

    store = Slow()
    settings = SETTINGS.model_copy(update={"tls": "issued"})
    times = OperatorTimes(retry_seconds=0.01)
    operator = Operator(cast("Api", store), settings, Metrics("1"), identity="me", times=times)
    operator._applier = Applier(store, lambda: True)
    await asyncio.wait_for(operator._ensure_certificates(), 60)
    assert Ref("Secret", "ops", "cachefleet-controlplane-tls") in store.objects


async def test_a_term_that_ends_takes_the_ends_of_certificates_with_it() -> None:
    """Otherwise an alert would fire for what another leader has renewed meanwhile."""
    store, metrics = Everywhere(), Metrics("1")
    settings = SETTINGS.model_copy(update={"tls": "issued"})
    operator = Operator(cast("Api", store), settings, metrics, identity="me")
    operator._applier = Applier(store, lambda: True)
    listed = asyncio.Event()
    store.before = lambda verb, _ref: listed.set() if verb == "list" else None
    term = asyncio.create_task(operator._term())
    await asyncio.wait_for(listed.wait(), 30)
    assert b'secret="cachefleet-controlplane-tls"' in generate_latest(metrics.registry)
    term.cancel()
    await asyncio.wait({term}, timeout=30)
    assert b"secret=" not in generate_latest(metrics.registry)


@pytest.mark.parametrize("times", [{"renew_seconds": 14}, {"stop_seconds": 6}, {"lease_seconds": 12}])
def test_times_by_which_two_could_lead_are_refused(times: dict[str, int]) -> None:
    assert OperatorTimes().renew_seconds < OperatorTimes().lease_seconds
    with pytest.raises(ValueError, match="must together be at most lease_seconds"):
        OperatorTimes(**times)
