"""The priority of a request that names an InferenceObjective by a header: pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from cachefleet_controlplane.pools.inference_objectives import InferenceObjectives
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.fleet_status.tenant_limits import MAX_NUMBER

HEADERS: Final = frozenset({b"x-gateway-inference-objective", b"x-llm-d-inference-objective"})
"""Of the Gateway API Inference Extension, and llm-d's newer name of it."""


def with_objective(
    tenant: TenantRecord,
    headers: Iterable[Header],
    model: ServedModel,
    objectives: InferenceObjectives,
    *,
    may_raise: bool,
) -> TenantRecord:
    """The tenant with the priority of the objective that ``headers`` name for a model, from its own one: ours is served
    the later the higher, an objective's the sooner. It stays where there is no such objective.

    ``may_raise``: it may also go before other requests of its tenant.
    """
    given = next((value for name, value in headers if name in HEADERS), None)
    if given is None:
        return tenant
    pools = [key.partition("/")[2] for key in model.pools]
    wanted = objectives.priority(model.namespace, given.decode("latin-1"), pools)
    if wanted is None:
        return tenant
    priority = max(-MAX_NUMBER, min(tenant.priority - wanted, MAX_NUMBER))
    return replace(tenant, priority=priority if may_raise else max(priority, tenant.priority))
