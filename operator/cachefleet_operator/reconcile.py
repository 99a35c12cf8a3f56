"""Reconcile one pool: read everything, plan, act."""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Any, NewType, Protocol

from cachefleet_core.budget import plan_budget
from cachefleet_core.pool import PoolError, PrefixCachePool, read_pool
from cachefleet_core.tenancy import FleetKey
from cachefleet_operator import manifests, names
from cachefleet_operator.api import Object, Ref, RefusedError, RetryableError
from cachefleet_operator.apply import Applier
from cachefleet_operator.conditions import Verdict
from cachefleet_operator.plan import Create, Desired, Observed, foreign, leaving, plan, report
from cachefleet_operator.pod import TemplateError
from cachefleet_operator.settings import Settings

PoolKey = NewType("PoolKey", str)
"""A pool's "namespace/name"."""

MAX_PROBLEMS = 5


class Outcome(StrEnum):
    """How one reconciliation ended; the label of its counter."""

    DONE = "done"
    WROTE = "wrote"
    GONE = "gone"
    REFUSED = "refused"


class FleetKeyError(Exception):
    """The fleet key's Secret does not hold one. It is never overwritten: somebody must look."""


class ReadApi(Protocol):
    """What a reconciler reads with."""

    async def get(self, ref: Ref) -> Object | None: ...


class Reconciler:
    """Brings a pool's objects and status in line with its spec, from a name alone."""

    def __init__(self, api: ReadApi, applier: Applier, settings: Settings, *, today: Callable[[], dt.datetime]) -> None:
        self._api = api
        self._applier = applier
        self._settings = settings
        self._today = today

    async def reconcile(self, key: PoolKey) -> Outcome:
        """One pass. ApiError where a request failed and the pass should be tried again."""
        namespace, name = key.split("/")
        pool = await self._api.get(Ref("PrefixCachePool", namespace, name))
        if pool is None or "deletionTimestamp" in pool["metadata"]:
            return Outcome.GONE  # its objects go with it
        observed = await self._observe(pool)
        if leaving(observed):
            raise RetryableError(0, "Leaving", "objects of an earlier pool of this name are still there")
        desired = await self._desire(observed)
        return await self._act(desired, observed)

    async def fleet_key(self) -> FleetKey:
        """The fleet's one secret, made where there is none. FleetKeyError where there is something else."""
        ref = Ref("Secret", self._settings.operator_namespace, names.FLEET_KEY_SECRET)
        secret = await self._api.get(ref)
        if secret is None:
            key = FleetKey.generate()
            await self._applier.act(Create(manifests.fleet_key_secret(ref.namespace, key)))
            return key
        return _parsed(secret, ref)

    async def _observe(self, pool: Object) -> Observed:
        metadata = pool["metadata"]
        refs = manifests.refs(metadata["namespace"], metadata["name"])
        found = await asyncio.gather(*(self._api.get(ref) for ref in refs))
        return Observed(pool, {ref: child for ref, child in zip(refs, found, strict=True) if child is not None})

    async def _desire(self, observed: Observed) -> Desired:
        pool, verdict = judge(observed.pool)
        if pool is None or not verdict.admitted:
            return Desired(verdict)
        try:
            apply = manifests.children(pool, self._settings)
        except TemplateError as error:
            return Desired(replace(verdict, invalid=("InvalidPodTemplate", str(error))))
        has_keys = Ref("Secret", pool.metadata.namespace, names.keys(pool)) in observed.children
        create = () if has_keys else (manifests.keys_secret(pool, await self.fleet_key()),)
        return Desired(verdict, create, apply)

    async def _act(self, desired: Desired, observed: Observed) -> Outcome:
        actions = plan(desired, observed, self._now())
        try:
            await self._applier.carry_out(actions)
        except RefusedError as error:
            if error.status == 404:
                return Outcome.GONE  # the pool or its namespace went while we worked
            refused = replace(desired.verdict, invalid=("Refused", error.message))
            await self._applier.carry_out(report(refused, observed, self._now()))
            return Outcome.REFUSED
        if foreign(desired, observed):
            return Outcome.REFUSED  # nobody will tell when it has gone
        return Outcome.WROTE if actions else Outcome.DONE

    def _now(self) -> str:
        return self._today().strftime("%Y-%m-%dT%H:%M:%SZ")


def judge(document: Object) -> tuple[PrefixCachePool | None, Verdict]:
    """What a pool as the API server has it asks for. The schema refuses most nonsense; what slips past ends here."""
    metadata = document["metadata"]
    given: dict[str, Any] = {name: document.get(name) for name in ("apiVersion", "kind", "spec")}
    known = ("name", "namespace", "uid", "generation", "labels", "annotations")
    given["metadata"] = {name: metadata[name] for name in known if name in metadata}
    try:
        pool = read_pool(given)
    except PoolError as error:
        lines = [str(problem) for problem in error.problems[:MAX_PROBLEMS]]
        more = len(error.problems) - len(lines)
        return None, Verdict(("Invalid", "; ".join(lines) + (f"; and {more} more" if more else "")))
    return pool, Verdict(None, plan_budget(pool.spec), pool.spec.replicas)


def _parsed(secret: Object, ref: Ref) -> FleetKey:
    try:
        return FleetKey.parse(base64.b64decode(secret["data"][names.FLEET_KEY]).decode())
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise FleetKeyError(f"Secret {ref.namespace}/{ref.name} holds no fleet key under {names.FLEET_KEY}") from error
