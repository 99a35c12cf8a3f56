"""Manifests of the objects that a pool owns (pure)."""

from __future__ import annotations

import base64
from collections.abc import Container
from typing import Any, Final

import msgspec

from cachefleet_core.engine.engine_arguments import engine_policy
from cachefleet_core.pool.spec import API_VERSION, KIND, PrefixCachePool
from cachefleet_core.tenancy import FleetKey, fleet_index_key
from cachefleet_core.tls_names import AGENT_PORT_NAME, ENGINE_PORT_NAME
from cachefleet_operator import names
from cachefleet_operator.kube.drift import stamped
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests.claim_template import claim_template_name, claim_template_spec
from cachefleet_operator.manifests.container import AGENT_PORT, ENGINE_PORT
from cachefleet_operator.manifests.network_policy import closed_to_others, open_to_all
from cachefleet_operator.manifests.pod import pod_template
from cachefleet_operator.manifests.pod_times import startup_seconds
from cachefleet_operator.settings import Settings

Manifest = dict[str, Any]

REVISIONS_KEPT: Final = 3
ENGINE_TLS_NUMBER: Final = 8443
AGENT_TLS_NUMBER: Final = 8444


def fleet_key_secret(namespace: str, key: FleetKey) -> Manifest:
    """Secret of the fleet key in the operator's namespace; without an owner, so it outlives every pool."""
    manifest = Ref("Secret", namespace, names.FLEET_KEY_SECRET).manifest()
    manifest["metadata"]["labels"] = dict(names.OURS)
    return {**manifest, "type": "Opaque", "data": {names.FLEET_KEY: _base64(key.format().encode())}}


def keys_secret(pool: PrefixCachePool, fleet: FleetKey) -> Manifest:
    """Secret of the index key of a pool's fleet and of its worker credential, both derived from the fleet key."""
    key = fleet_index_key(fleet.index_key, pool.metadata.namespace, pool.spec.model.name)
    index = base64.urlsafe_b64encode(key)
    data = {names.INDEX_KEY: _base64(index), names.WORKER_KEY: _base64(fleet.worker_key(pool.key).encode())}
    return {**_begin(pool, "Secret", names.keys(pool.metadata.name)), "type": "Opaque", "data": data}


def certificate_secret(pool: PrefixCachePool) -> Manifest:
    """Secret of the TLS certificate of a pool's workers, without its type and data."""
    return _begin(pool, "Secret", names.certificate(pool.metadata.name))


def children(
    pool: PrefixCachePool,
    settings: Settings,
    *,
    chat_template: str = "",
    keys: str = "",
    there: Container[Ref] = (),
) -> tuple[Manifest, ...]:
    """Manifests to apply for a pool, in order of dependency. TemplateError from an invalid ``podTemplate``.

    ``chat_template`` is the digest of the pool's chat template, "" where it names none; ``keys`` is the mark of the
    keys that pods hold; ``there`` are the objects that exist.
    """
    template = pod_template(pool, settings, chat_template=chat_template, keys=keys)
    live = policy(pool)
    # Last where there is one: it must not be in force where the rest is refused.
    last = Ref.of(live) in there
    made = (
        _service_account(pool),
        *([] if last else [live]),
        _service(pool, settings),
        _disruption_budget(pool),
        *_network_policy(pool, settings, there),
        *_claim_template(pool),
        _deployment(pool, template),
        *([live] if last else []),
    )
    return tuple(map(stamped, made))


def held(pool: PrefixCachePool) -> tuple[Manifest, ...]:
    """Manifests to apply for the spec of a pool that is in force, while its present one is not admitted."""
    return (stamped(policy(pool)),)


def inference_pool(pool: PrefixCachePool, service: str, port: int) -> Manifest:
    """InferencePool of a pool's name, with the endpoint picker at a Service of its namespace.

    A worker has one port, whatever its ranks.
    """
    picker = {"group": "", "kind": "Service", "name": service, "port": {"number": port}}
    spec = {
        "selector": {"matchLabels": selected_labels(pool)},
        "targetPorts": [{"number": ENGINE_PORT}],
        "endpointPickerRef": {**picker, "failureMode": pool.spec.inference_pool.failure_mode.value},
    }
    return stamped({**_begin(pool, "InferencePool", pool.metadata.name), "spec": spec})


def selected_labels(pool: PrefixCachePool) -> dict[str, str]:
    """Labels by which a pool's InferencePool selects workers."""
    given = {label.name: label.value for label in pool.spec.inference_pool.labels}
    return given or {names.POOL_LABEL: pool.metadata.name}


def refs(namespace: str, name: str, *, issued: bool = False) -> tuple[Ref, ...]:
    """References of every object that a pool of this name may own, whatever its spec says.

    ``issued``: the operator issues certificates.
    """
    suffixes = {
        "Secret": "worker-keys",
        "ServiceAccount": "worker",
        "ConfigMap": "policy",
        "Service": "workers",
        "PodDisruptionBudget": "workers",
        "NetworkPolicy": "workers",
        "Deployment": "workers",
    }
    certificate = (Ref("Secret", namespace, names.certificate(name)),) if issued else ()
    return (*(Ref(kind, namespace, f"{name}-{suffix}") for kind, suffix in suffixes.items()), *certificate)


def _service_account(pool: PrefixCachePool) -> Manifest:
    return {**_begin(pool, "ServiceAccount", names.service_account(pool)), "automountServiceAccountToken": False}


def policy(pool: PrefixCachePool) -> Manifest:
    """ConfigMap that agents poll; not part of the pod template, so that a new policy restarts no pod."""
    text = msgspec.json.encode(engine_policy(pool), order="deterministic").decode()
    return {**_begin(pool, "ConfigMap", names.policy(pool)), "data": {names.POLICY_FILE: text}}


def _service(pool: PrefixCachePool, settings: Settings) -> Manifest:
    """Headless: the control plane chooses the worker, not the Service.

    With TLS a slice of its endpoints has the ports of those names that its pods have: while a pool rolls, some serve
    TLS and some do not.
    """
    ports = [_port("engine", ENGINE_PORT), _port("agent", AGENT_PORT)]
    if settings.serves_tls:
        # No two ports of a Service may have one number; nobody uses these, workers are reached at their own.
        ports += [_port(ENGINE_PORT_NAME, ENGINE_TLS_NUMBER), _port(AGENT_PORT_NAME, AGENT_TLS_NUMBER)]
    spec = {"clusterIP": "None", "selector": {names.POOL_LABEL: pool.metadata.name}, "ports": ports}
    return {**_begin(pool, "Service", names.service(pool.metadata.name)), "spec": spec}


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}


def _disruption_budget(pool: PrefixCachePool) -> Manifest:
    """At most ``maxUnavailable`` workers are evicted at a time, at least one; one that is not ready always may be."""
    spec = {
        "maxUnavailable": max(1, pool.spec.rollout.max_unavailable),
        "selector": {"matchLabels": {names.POOL_LABEL: pool.metadata.name}},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return {**_begin(pool, "PodDisruptionBudget", names.disruption_budget(pool)), "spec": spec}


def _network_policy(pool: PrefixCachePool, settings: Settings, there: Container[Ref]) -> list[Manifest]:
    """None where no peers are named; one that was made before is opened then, since nothing is ever deleted."""
    begin = _begin(pool, "NetworkPolicy", names.network_policy(pool))
    if settings.worker_peers:
        return [{**begin, "spec": closed_to_others(pool, settings.worker_peers)}]
    return [{**begin, "spec": open_to_all(pool)}] if Ref.of(begin) in there else []


def _claim_template(pool: PrefixCachePool) -> list[Manifest]:
    spec = claim_template_spec(pool)
    return [{**_begin(pool, "ResourceClaimTemplate", claim_template_name(pool)), "spec": spec}] if spec else []


def _deployment(pool: PrefixCachePool, template: Manifest) -> Manifest:
    rollout = pool.spec.rollout
    spec = {
        "replicas": pool.spec.replicas,
        "revisionHistoryLimit": REVISIONS_KEPT,
        "progressDeadlineSeconds": startup_seconds(template["spec"]) + rollout.warm_timeout_seconds,
        "selector": {"matchLabels": {names.POOL_LABEL: pool.metadata.name}},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
        },
        "template": template,
    }
    return {**_begin(pool, "Deployment", names.deployment(pool.metadata.name)), "spec": spec}


def _begin(pool: PrefixCachePool, kind: str, name: str) -> Manifest:
    manifest = Ref(kind, pool.metadata.namespace, name).manifest()
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": pool.metadata.name,
        "uid": pool.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    manifest["metadata"] |= {"labels": names.labels(pool), "ownerReferences": [owner]}
    return manifest


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
