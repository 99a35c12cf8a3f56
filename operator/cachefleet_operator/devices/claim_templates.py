"""Reads a pool's own ResourceClaimTemplates, and whether the API of claims is served at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cachefleet_operator import names
from cachefleet_operator.kube.objects import Ref
from cachefleet_runtime.kubernetes import LIST_PAGE, Object, RefusedError

KIND: Final = "ResourceClaimTemplate"
_NOT_SERVED: Final = (
    "spec.device.claims: this API server does not serve resource.k8s.io/v1, as Kubernetes 1.34 and later do: give "
    "spec.device.resource instead"
)


class ClaimsError(ValueError):
    """A pool claims devices, and that cannot be done in this cluster."""


class ClaimApi(Protocol):
    """The request that this needs."""

    async def list(
        self, kind: str, namespace: str, *, page: int, selector: str = "", fields: str = ""
    ) -> list[Object] | None: ...


@dataclass(frozen=True, slots=True)
class ClaimTemplates:
    """A pool's own templates, those of former specs too; ``problem``: why it cannot claim devices, "" where it can."""

    templates: Mapping[Ref, Object] = field(default_factory=dict)
    problem: str = ""


NO_TEMPLATES: Final = ClaimTemplates()


async def claim_templates(api: ClaimApi, pool: Object) -> ClaimTemplates:
    """Those of a pool as the API server has it; nothing is asked where it claims no devices."""
    namespace, name = pool["metadata"]["namespace"], pool["metadata"]["name"]
    if not claims_devices(pool):
        return NO_TEMPLATES
    try:
        found = await api.list(KIND, namespace, page=LIST_PAGE, selector=names.selector(name))
    except RefusedError as error:
        return ClaimTemplates(problem=f"spec.device.claims: ResourceClaimTemplates cannot be read: {error.message}")
    if found is None:
        return ClaimTemplates(problem=_NOT_SERVED)
    refs = {Ref(KIND, namespace, each["metadata"]["name"]): each for each in found if names.is_ours(each)}
    return ClaimTemplates({ref: {**ref.manifest(), **each} for ref, each in refs.items()})  # a list leaves out its kind


def claims_devices(pool: Mapping[str, Any]) -> bool:
    """Whether a pool, as the API server has it, claims devices."""
    device = (pool.get("spec") or {}).get("device")
    return isinstance(device, Mapping) and bool(device.get("claims"))
