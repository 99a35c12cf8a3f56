"""Reconciles one pool: reads its state, plans, carries out the plan."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, NewType, Protocol

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.tenancy import FleetKey
from cachefleet_operator import names
from cachefleet_operator.certificates.certificate import CertificateError
from cachefleet_operator.controlplane_client.facts_cache import FactsCache, no_facts
from cachefleet_operator.devices.pool_claims import ClaimReader, ClaimsError, device_memory
from cachefleet_operator.devices.waiting_claims import claim_failures
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests import child_objects as manifests
from cachefleet_operator.manifests.pod import TemplateError
from cachefleet_operator.operator_times import OperatorTimes
from cachefleet_operator.reasons import Reason
from cachefleet_operator.reconcile.apply import Applier, Create, ImageVolumesError, mounts_images, refusal, undone
from cachefleet_operator.reconcile.certificate_renewal import Certificates
from cachefleet_operator.reconcile.chat_template import ChatTemplateError, template_digest
from cachefleet_operator.reconcile.control_plane_pools import is_own, tell_unknown
from cachefleet_operator.reconcile.field_conflicts import FieldConflicts, autoscaler_of
from cachefleet_operator.reconcile.fleet_key import FleetKeyError, parsed_fleet_key
from cachefleet_operator.reconcile.futile_applies import FutileApplies
from cachefleet_operator.reconcile.inference_pools import InferencePools
from cachefleet_operator.reconcile.plan import (
    Clock,
    Desired,
    Observed,
    as_wanted,
    fewer_or_other_pods,
    foreign,
    is_new_edit,
    leaving,
    look_again,
    plan,
    report,
)
from cachefleet_operator.reconcile.released_pods import UNLABELLED
from cachefleet_operator.reconcile.replica_sets import ReplicaSet, replica_sets_of
from cachefleet_operator.reconcile.rollout import deadline, is_paused, may_surge
from cachefleet_operator.reconcile.volume_events import volume_failures
from cachefleet_operator.reconcile.worker_keys import KeysChangedError, KeysPlan, KeysRewrittenError, keys_plan
from cachefleet_operator.settings import Settings
from cachefleet_operator.status.admission import pool_in_force, with_known_size
from cachefleet_operator.status.pods import ended, owned, pods_of
from cachefleet_operator.status.pods import foreign as foreign_pods
from cachefleet_operator.status.pool_assessment import (
    Observations,
    Verdict,
    judge,
    with_last_budget,
    with_memory,
    with_reported_sizes,
)
from cachefleet_runtime.kubernetes import LIST_PAGE, Object, RefusedError, RetryableError

log = logging.getLogger(__name__)

PoolKey = NewType("PoolKey", str)
"""A pool's "namespace/name"."""


class Outcome(StrEnum):
    """How one reconciliation ended; label value of its counter."""

    DONE = "done"
    WROTE = "wrote"
    GONE = "gone"
    ELSEWHERE = "elsewhere"
    REFUSED = "refused"


class ReadApi(Protocol):
    """The API requests by which a reconciler reads."""

    async def get(self, ref: Ref) -> Object | None: ...
    async def list(
        self, kind: str, namespace: str, *, page: int, selector: str = "", fields: str = ""
    ) -> list[Object] | None: ...


class Reporter(Protocol):
    """Receives the conditions of each pool that is read, and the names of pools that are gone."""

    def conditions(self, namespace: str, pool: str, conditions: Sequence[Mapping[str, Any]]) -> None: ...
    def forget(self, namespace: str, pool: str) -> None: ...


class Reconciler:
    """Brings a pool's objects and status in line with its spec, given its key.

    ``later`` is called with a pool's key and the seconds after which to reconcile it again without an event.
    """

    def __init__(
        self,
        api: ReadApi,
        applier: Applier,
        settings: Settings,
        *,
        today: Callable[[], dt.datetime],
        facts_cache: FactsCache | None = None,
        reporter: Reporter | None = None,
        certificates: Certificates | None = None,
        later: Callable[[PoolKey, float], None] = lambda _key, _seconds: None,
        times: OperatorTimes | None = None,
    ) -> None:
        self._api = api
        self._applier = applier
        self._settings = settings
        self._times = times or OperatorTimes()
        self._today = today
        self._facts_cache = facts_cache or no_facts()
        self._reporter = reporter
        self._certificates = certificates
        self._later = later
        self._claims = ClaimReader(api)
        again = self._times.inference_pool_seconds
        self._inference_pools = InferencePools(
            api, applier, settings.picker, later=lambda key: later(PoolKey(key), again)
        )
        self._futile = FutileApplies()
        self._conflicts = FieldConflicts()

    async def reconcile(self, key: PoolKey) -> Outcome:
        """One pass over a pool. KubernetesError where a request failed and the pass should be repeated."""
        namespace, name = key.split("/")
        pool = await self._api.get(Ref("PrefixCachePool", namespace, name))
        if pool is None or "deletionTimestamp" in pool["metadata"]:
            self._forget(key)
            return Outcome.GONE  # its objects are garbage-collected
        if not is_own(pool, self._settings):
            return await self._leave(key, pool)
        self._report(pool)
        observed = await self._observe(pool)
        desired, observed = await self._desire(key, observed)
        if leaving(observed):
            await self._applier.carry_out(report(desired.verdict, observed, self._clock(), applied=False))
            raise RetryableError(0, "Leaving", "objects of an earlier pool of this name are still there")
        return await self._act(key, desired, observed)

    async def fleet_key(self) -> FleetKey:
        """The fleet key; created where its Secret is missing. FleetKeyError where the Secret holds none."""
        ref = Ref("Secret", self._settings.operator_namespace, names.FLEET_KEY_SECRET)
        secret = await self._api.get(ref)
        if secret is None:
            key = FleetKey.generate()
            await self._applier.act(Create(manifests.fleet_key_secret(ref.namespace, key)))
            return key
        return parsed_fleet_key(secret, ref)

    async def _observe(self, pool: Object) -> Observed:
        namespace, name = pool["metadata"]["namespace"], pool["metadata"]["name"]
        refs = manifests.refs(namespace, name, issued=self._settings.tls == "issued")
        *found, with_label, without = await asyncio.gather(
            *(self._api.get(ref) for ref in refs),
            *(
                self._api.list("Pod", namespace, page=LIST_PAGE, selector=selector)
                for selector in (names.selector(name), UNLABELLED)
            ),
        )
        children = {ref: child for ref, child in zip(refs, found, strict=True) if isinstance(child, dict)}
        claims = await self._claims.templates(pool)
        children |= claims.templates
        labelled, unlabelled = (each if isinstance(each, list) else () for each in (with_label, without))
        pods = (*labelled, *unlabelled)
        now = self._today()
        observed = Observed(
            pool,
            children,
            in_vain=self._futile.among(children),
            pod_manifests=pods,
            conflicts=self._conflicts.among(children, now),
            claims=claims,
        )
        if any(each.keeps_pods for each in observed.conflicts.values()):
            observed = replace(observed, replica_sets=await self._replica_sets(observed))
        if any(each.of_autoscaler for each in observed.conflicts.values()):
            observed = replace(observed, autoscaler=await self._autoscaler(namespace, names.deployment(name)))
        return replace(observed, observations=await self._pods(observed, labelled, now))

    async def _pods(self, observed: Observed, labelled: Sequence[Object], now: dt.datetime) -> Observations:
        """What the pods with a pool's label say, and what keeps them from devices and volumes."""
        name, late = observed.pool["metadata"]["name"], deadline(observed.deployment)
        there = [pod for pod in labelled if owned(pod, name)]
        volumes = await volume_failures(self._api, there, now, page=LIST_PAGE)
        grace = self._times.unschedulable_seconds
        devices = await claim_failures(self._api, there, now, grace_seconds=grace)
        seen = pods_of(
            there,
            now,
            grace_seconds=grace,
            ready_seconds=late,
            volumes=volumes,
            claims=devices,
            surges=may_surge(observed.deployment),
        )
        how = ended(there, now, seconds=late)
        paused, strangers = is_paused(observed.deployment), foreign_pods(labelled, name)
        return Observations(seen, paused=paused, ended=how, foreign=strangers)

    async def _replica_sets(self, observed: Observed) -> tuple[ReplicaSet, ...] | None:
        """Those of the pool's Deployment, None where there is none or none may be seen."""
        live, selector = observed.deployment, names.selector(observed.pool["metadata"]["name"])
        try:
            found = await self._api.list("ReplicaSet", observed.namespace, page=LIST_PAGE, selector=selector)
        except RefusedError:
            return None
        return replica_sets_of(live, found or ()) if live else None

    async def _autoscaler(self, namespace: str, deployment: str) -> str:
        """Name of a Deployment's autoscaler; "" where there is none, or reading is not permitted."""
        try:
            found = await self._api.list("HorizontalPodAutoscaler", namespace, page=LIST_PAGE)
        except RefusedError:
            return ""
        return autoscaler_of(deployment, found or ())

    async def _desire(self, key: PoolKey, observed: Observed) -> tuple[Desired, Observed]:
        desired, observed = await self._wanted(key, observed)
        if desired.verdict.admitted:
            return desired, observed
        return await self._held(key, desired.verdict, observed), observed

    async def _held(self, key: PoolKey, verdict: Verdict, observed: Observed) -> Desired:
        """Objects that running or restarting workers need under the spec in force; errors there are reported later."""
        pool, renewed = pool_in_force(observed.pool), self._renewed(key, observed)
        if pool is None:
            return Desired(verdict, renewed=renewed)
        policy = manifests.held(pool)
        try:
            keys, made = await self._keys(pool, observed), self._made(pool, observed)
        except (FleetKeyError, KeysChangedError, KeysRewrittenError, CertificateError):
            return Desired(verdict, renewed=renewed, held=policy)
        return Desired(verdict, (*keys.create, *made), renewed=(*renewed, *keys.renewed), held=policy)

    async def _wanted(self, key: PoolKey, observed: Observed) -> tuple[Desired, Observed]:
        """What the present spec asks for, with the verdict on it."""
        pool, verdict = judge(observed.pool)
        if pool is None:
            self._facts_cache.unread(key, observed.pool)
            seen = replace(observed.observations, facts=await self._facts_cache.facts(key))
            return Desired(verdict), replace(observed, observations=seen)
        if pool.spec.device.memory_mib is None:
            pool, verdict = await self._with_memory(pool, verdict, observed)
        self._facts_cache.note(pool)
        facts = await self._facts_cache.facts(key)
        wish = await self._wish(pool, verdict, observed)
        desired = replace(wish, renewed=(*self._renewed(key, observed), *wish.renewed))
        known = with_reported_sizes(pool, verdict, facts, as_wanted(desired, observed))
        known = with_known_size(pool, with_last_budget(known, observed.pool), observed.pool)
        desired = desired.judged(known)
        if fewer_or_other_pods(desired, observed):
            facts = await self._facts_cache.fresh(key)
        observations = replace(
            observed.observations,
            facts=facts,
            disagreement=self._facts_cache.disagreement(key),
            name_conflict=self._facts_cache.name_conflict(key),
            inference_pool=await self._inference_pools.keep(pool, admitted=desired.verdict.admitted),
        )
        return desired, replace(observed, observations=observations)

    async def _with_memory(
        self, pool: PrefixCachePool, verdict: Verdict, observed: Observed
    ) -> tuple[PrefixCachePool, Verdict]:
        """With what the cluster tells of the devices that a pool claims, which holds until it claims others."""
        found = await device_memory(self._api, pool, observed.pool)
        if found.mib is None:
            self._later(PoolKey(pool.key), self._times.chat_template_seconds)
        return with_memory(pool, verdict, found.mib, found.problem)

    async def _wish(self, pool: PrefixCachePool, verdict: Verdict, observed: Observed) -> Desired:
        """The manifests that are wanted; none where the verdict does not admit workers."""
        if not verdict.admitted:
            return Desired(verdict)
        try:
            if observed.claims.problem:
                raise ClaimsError(observed.claims.problem)
            keys = await self._keys(pool, observed)
            made = self._made(pool, observed)
            chat_template = await self._chat_template(pool)
            apply = manifests.children(
                pool, self._settings, chat_template=chat_template, keys=keys.mark, there=observed.children.keys()
            )
        except tuple(_INVALID) as error:
            if not isinstance(error, TemplateError):  # what it is about is not watched
                self._later(PoolKey(pool.key), self._times.chat_template_seconds)
            return Desired(replace(verdict, invalid=(_INVALID[type(error)], str(error))))
        return Desired(verdict, (*keys.create, *made), apply, keys.renewed)

    async def _keys(self, pool: PrefixCachePool, observed: Observed) -> KeysPlan:
        """What to do about the Secret of a pool's keys. FleetKeyError, KeysChangedError, KeysRewrittenError."""
        ref = Ref("Secret", self._settings.operator_namespace, names.FLEET_KEY_SECRET)
        try:
            if observed.keys is None:
                fleet = await self.fleet_key()
            else:  # keys are there, so there was a fleet key: another one would fit none of them
                fleet = parsed_fleet_key(await self._api.get(ref), ref)
        except RefusedError as error:
            raise FleetKeyError(f"Secret {ref.namespace}/{ref.name} cannot be read or made: {error.message}") from error
        wanted, where = manifests.keys_secret(pool, fleet), f"{ref.namespace}/{ref.name}"
        return keys_plan(wanted, observed, fleet_key=where, now=self._today())

    def _made(self, pool: PrefixCachePool, observed: Observed) -> tuple[Object, ...]:
        """The Secret of the workers' certificate where it is missing. CertificateError."""
        return () if self._certificates is None or observed.certificate else self._certificates.made(pool)

    def _renewed(self, key: PoolKey, observed: Observed) -> tuple[Object, ...]:
        """The Secret of the workers' certificate where it is there and to be replaced."""
        live = observed.certificate
        return self._certificates.renewed(key, live) if self._certificates and live else ()

    async def _chat_template(self, pool: PrefixCachePool) -> str:
        """Digest of the chat template, "" where the pool names none. ChatTemplateError where it is not there."""
        if pool.spec.model.chat_template is None:
            return ""
        ref = pool.spec.model.chat_template.config_map_key_ref
        found = await self._api.get(Ref("ConfigMap", pool.metadata.namespace, ref.name))
        # A ConfigMap that is not the operator's is not watched.
        self._later(PoolKey(pool.key), self._times.chat_template_seconds)
        return template_digest(found, ref)

    async def _act(self, key: PoolKey, desired: Desired, observed: Observed) -> Outcome:
        clock = self._clock()
        actions = plan(desired, observed, clock)
        if (wait := look_again(desired, observed, clock)) is not None:
            self._later(key, wait)
        try:
            if is_new_edit(desired, observed) or mounts_images(actions):
                await self._applier.rehearse(actions)
            self._compare(key, observed, await self._applier.carry_out(actions))
            self._conflicts.undone(undone(actions), self._today())
        except RefusedError as error:
            if error.status == 404:
                return Outcome.GONE  # the pool or its namespace went while we worked
            return await self._refused(Reason.REFUSED, refusal(error), desired, observed)
        except ImageVolumesError as error:
            return await self._refused(Reason.IMAGE_VOLUMES_UNSUPPORTED, str(error), desired, observed)
        if foreign(desired, observed):
            return Outcome.REFUSED  # tried again later: its removal is not watched
        return Outcome.WROTE if actions else Outcome.DONE

    async def _refused(self, reason: Reason, words: str, desired: Desired, observed: Observed) -> Outcome:
        verdict = replace(desired.verdict, invalid=(reason, words))
        await self._applier.carry_out(report(verdict, observed, self._clock()))
        return Outcome.REFUSED

    def _compare(self, key: PoolKey, observed: Observed, applied: Sequence[tuple[Object, Object]]) -> None:
        """Record applies that changed nothing, and queue the pool again: without a change there is no event."""
        for manifest, after in applied:
            ref = Ref.of(manifest)
            if self._futile.met(manifest, observed.children.get(ref), after):
                log.warning("%s does not become what is applied: something in the cluster changes or drops it", ref)
                self._later(key, self._times.retry_first_seconds)

    async def _leave(self, key: PoolKey, pool: Object) -> Outcome:
        """Leave a pool to the operator of the control plane that it names; only the name of its model counts here."""
        self._forget(key, pool)
        await self._applier.carry_out(tell_unknown(pool, self._settings, now=self._clock().now))
        return Outcome.ELSEWHERE

    def _forget(self, key: PoolKey, left: Object | None = None) -> None:
        namespace, name = key.split("/")
        self._facts_cache.drop(key, left)
        self._claims.forget(namespace, name)
        self._inference_pools.forget(key)
        refs = manifests.refs(namespace, name)
        self._futile.forget(refs)
        self._conflicts.forget(refs)
        if self._reporter:
            self._reporter.forget(namespace, name)

    def _report(self, pool: Object) -> None:
        metadata, conditions = pool["metadata"], (pool.get("status") or {}).get("conditions") or ()
        if self._reporter:
            self._reporter.conditions(metadata["namespace"], metadata["name"], conditions)

    def _clock(self) -> Clock:
        return Clock(self._today().strftime("%Y-%m-%dT%H:%M:%SZ"), self._times.status_seconds)


_INVALID: Final[Mapping[type[Exception], Reason]] = {
    TemplateError: Reason.INVALID_POD_TEMPLATE,
    ClaimsError: Reason.DEVICES_NOT_CLAIMABLE,
    ChatTemplateError: Reason.CHAT_TEMPLATE_MISSING,
    FleetKeyError: Reason.FLEET_KEY_BROKEN,
    KeysChangedError: Reason.FLEET_KEY_CHANGED,
    KeysRewrittenError: Reason.KEYS_REWRITTEN,
    CertificateError: Reason.CERTIFICATES_BROKEN,
}
"""Why a pool's workers cannot be as its spec says."""
