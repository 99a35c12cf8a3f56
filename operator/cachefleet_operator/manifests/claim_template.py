"""The ResourceClaimTemplate of a pool that claims devices of a class, and its pods' reference to a claim (pure)."""

from __future__ import annotations

import hashlib
import json

from cachefleet_core.pool.spec import PoolSpec, PrefixCachePool
from cachefleet_core.pool.worker_spec import DeviceClaims
from cachefleet_operator import names
from cachefleet_operator.manifests.container import CLAIM, Manifest


def claim_template_spec(pool: PrefixCachePool) -> Manifest | None:
    """The spec of a pool's own template, None where it needs none."""
    claims = pool.spec.device.claims
    if claims is None or claims.class_name is None:
        return None
    requests = [{"name": CLAIM, "exactly": _request(pool.spec, claims)}]
    return {"metadata": {"labels": names.labels(pool)}, "spec": {"devices": {"requests": requests}}}


def claim_template_name(pool: PrefixCachePool) -> str:
    """Its name, which is another for another spec: that of a template never changes, and old pods may come back."""
    text = json.dumps(claim_template_spec(pool), sort_keys=True)
    return f"{pool.metadata.name}-devices-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def pod_claims(pool: PrefixCachePool) -> Manifest:
    """What a worker's pod spec says of its claim, nothing where devices are no claim's."""
    claims = pool.spec.device.claims
    if claims is None:
        return {}
    if claims.resource_claim_name is not None:
        return {"resourceClaims": [{"name": CLAIM, "resourceClaimName": claims.resource_claim_name}]}
    template = claims.resource_claim_template_name or claim_template_name(pool)
    return {"resourceClaims": [{"name": CLAIM, "resourceClaimTemplateName": template}]}


def _request(spec: PoolSpec, claims: DeviceClaims) -> Manifest:
    chosen = {"selectors": [{"cel": {"expression": each}} for each in claims.selectors]} if claims.selectors else {}
    return {
        "deviceClassName": claims.class_name,
        "allocationMode": "ExactCount",
        "count": claims.count or spec.engine.devices,
        **chosen,
    }
