"""Keeps a pool's InferencePool (Gateway API Inference Extension) as its spec has it, beside the pool's other objects.

Its API may not be there, nor the right to use it, and it is of no use to workers. So whatever fails here becomes a
condition of its own and holds nothing else up, and it is read again from time to time in place of a watch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_operator import names
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests.child_objects import inference_pool, selected_labels
from cachefleet_operator.reasons import Reason
from cachefleet_operator.reconcile.apply import Action, Applier, Delete
from cachefleet_operator.reconcile.plan import is_as_applied, owner_of, repairs
from cachefleet_operator.status.finding import Finding
from cachefleet_operator.status.gateway_acceptance import CONDITION, acceptance
from cachefleet_runtime.kubernetes import LIST_PAGE, KubernetesError, Object, RefusedError

log = logging.getLogger(__name__)

KIND: Final = "InferencePool"
_NO_PICKER: Final = (
    "the operator makes no InferencePools: set controlPlane.picker.enabled and controlPlane.picker.inferencePools in "
    "the chart's values"
)
_NOT_SERVED: Final = (
    "this API server does not serve inference.networking.k8s.io/v1: install the CRD "
    "inferencepools.inference.networking.k8s.io of the Gateway API Inference Extension, and a gateway that knows it"
)


class InferenceApi(Protocol):
    """The requests that these need."""

    async def get(self, ref: Ref) -> Object | None: ...
    async def list(
        self, kind: str, namespace: str, *, page: int, selector: str = "", fields: str = ""
    ) -> list[Object] | None: ...


class InferencePools:
    """Those of all pools; ``picker`` is name and port of the endpoint picker's Service, None where none are made.

    ``later`` is called with the key of a pool that is to be looked at again. A pool that wants none is asked about
    once: there may be one of a former spec.
    """

    def __init__(
        self, api: InferenceApi, applier: Applier, picker: tuple[str, int] | None, *, later: Callable[[str], None]
    ) -> None:
        self._later = later
        self._api = api
        self._applier = applier
        self._picker = picker
        self._without: set[str] = set()

    async def keep(self, pool: PrefixCachePool, *, admitted: bool) -> Finding | None:
        """Make, mend or delete a pool's own; the condition of it, None where none is wanted.

        Nothing is written where the pool's spec is not ``admitted``.
        """
        wanted = pool.spec.inference_pool.enabled
        if wanted:
            self._later(pool.key)
        if self._picker is None:
            return Finding(CONDITION, "False", Reason.NO_PICKER, _NO_PICKER) if wanted else None
        if wanted:
            self._without.discard(pool.key)
            return await self._kept(pool, self._picker, admitted=admitted)
        if admitted and pool.key not in self._without:
            await self._remove(pool)
        return None

    def forget(self, key: str) -> None:
        """A pool is gone: another of its name is asked about anew."""
        self._without.discard(key)

    async def _kept(self, pool: PrefixCachePool, picker: tuple[str, int], *, admitted: bool) -> Finding:
        try:
            found = await self._live(pool)
            if found is None:
                return Finding(CONDITION, "False", Reason.INFERENCE_POOLS_NOT_SERVED, _NOT_SERVED)
            live = found[0] if found else None
            service = await self._api.get(Ref("Service", pool.metadata.namespace, picker[0]))
            if problem := obstacle(pool, picker[0], live, has_service=service is not None):
                return problem
            if admitted:
                live = await self._written(inference_pool(pool, *picker), live)
        except KubernetesError as error:
            status = "False" if isinstance(error, RefusedError) else "Unknown"
            return Finding(CONDITION, status, Reason.REFUSED, f"{KIND} {pool.metadata.name}: {error.message}")
        return acceptance(live) if live else _held()

    async def _written(self, manifest: Object, live: Object | None) -> Object:
        if live is not None and is_as_applied(manifest, live):
            return live
        actions: list[Action] = [*repairs(manifest, live, None)]
        return (await self._applier.carry_out(actions))[-1][1]

    async def _remove(self, pool: PrefixCachePool) -> None:
        try:
            found = await self._live(pool) or []
            ours = [each for each in found if _owns(pool, each)]
            await self._applier.carry_out([Delete(each) for each in ours])
        except KubernetesError as error:
            log.warning("whether an %s is left over cannot be read: %s", KIND, error, extra={"pool": pool.key})
            ours = []
        if not ours:
            self._without.add(pool.key)

    async def _live(self, pool: PrefixCachePool) -> list[Object] | None:
        namespace, name = pool.metadata.namespace, pool.metadata.name
        found = await self._api.list(KIND, namespace, page=LIST_PAGE, fields=f"metadata.name={name}")
        whole = Ref(KIND, namespace, name).manifest()
        return None if found is None else [{**whole, **each} for each in found]  # a list leaves out its kind


def obstacle(pool: PrefixCachePool, service: str, live: Object | None, *, has_service: bool) -> Finding | None:
    """Why nothing is written: pure; None where it may be."""
    name = pool.metadata.name
    if live is not None and not _owns(pool, live):
        words = f"{KIND} {name} exists and is not this pool's: remove it, or rename the pool"
        return Finding(CONDITION, "False", Reason.NAME_TAKEN, words)
    if live is not None and "deletionTimestamp" in live["metadata"]:
        return Finding(CONDITION, "Unknown", Reason.GATEWAY_PENDING, f"{KIND} {name} is being deleted, and made again")
    if not has_service:
        words = (
            f"namespace {pool.metadata.namespace} has no Service {service}, and an {KIND} can refer to its own "
            "namespace alone: install a release of the chart there, with namespaces set to it"
        )
        return Finding(CONDITION, "False", Reason.PICKER_SERVICE_MISSING, words)
    if lacking := _lacking(pool):
        words = (
            f"workers do not have the labels {', '.join(lacking)} of inferencePool.labels: give them in podTemplate, "
            "or leave those out"
        )
        return Finding(CONDITION, "False", Reason.WORKERS_NOT_SELECTED, words)
    return None


def _lacking(pool: PrefixCachePool) -> list[str]:
    """The selected labels that the pool's own workers do not have."""
    metadata = pool.spec.pod_template.get("metadata")
    given = metadata.get("labels") if isinstance(metadata, Mapping) else None
    have: dict[str, Any] = {**(given if isinstance(given, Mapping) else {}), **names.labels(pool)}
    return [f"{name}={value}" for name, value in selected_labels(pool).items() if have.get(name) != value]


def _owns(pool: PrefixCachePool, live: Object) -> bool:
    return owner_of(live) == pool.metadata.uid


def _held() -> Finding:
    words = "the pool's spec is not admitted: see ConfigValid and BudgetAdmitted"
    return Finding(CONDITION, "Unknown", Reason.HELD, words)
