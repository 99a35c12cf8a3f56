"""Edits by hand of the objects that a pool owns, one for each field with a meaning: what the operator has to undo."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class HandEdit:
    """Another value at a place; entries of lists by name or number, a list is appended to unless it ``replaces``."""

    kind: str
    place: str
    value: Any
    replaces: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.place}"

    def of(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """The object after the edit."""
        edited = deepcopy(dict(manifest))
        *way, last = self.place.split(".")
        at: Any = edited
        for name in way:
            at = _entry(at, name) if isinstance(at, list) else at.setdefault(name, {})
        if isinstance(at, list):
            at.append({"name": last, **self.value})
        elif isinstance(self.value, list) and not self.replaces:
            at[last] = [*at.get(last, ()), *self.value]
        else:
            at[last] = self.value
        return edited


def _entry(entries: list[Any], name: str) -> Any:
    return entries[int(name)] if name.isdecimal() else next(each for each in entries if each["name"] == name)


ENGINE: Final = "template.spec.containers.engine"
AGENT: Final = "template.spec.initContainers.agent"

ADDITIONS: Final = [
    HandEdit("Service", "spec.selector.extra", "x"),
    HandEdit("Service", "spec.ports", [{"name": "more", "port": 9, "protocol": "TCP"}]),
    HandEdit("Service", "spec.publishNotReadyAddresses", value=True),
    HandEdit("Service", "spec.type", "ExternalName"),
    HandEdit("Service", "spec.externalIPs", ["192.0.2.1"]),
    HandEdit("Service", "spec.sessionAffinity", "ClientIP"),
    HandEdit("PodDisruptionBudget", "spec.minAvailable", 1),
    HandEdit("PodDisruptionBudget", "spec.selector.matchLabels.extra", "x"),
    HandEdit("PodDisruptionBudget", "spec.selector.matchExpressions", [{"key": "a", "operator": "Exists"}]),
    HandEdit("NetworkPolicy", "spec.podSelector.matchLabels.extra", "x"),
    HandEdit("NetworkPolicy", "spec.egress", [{"to": []}]),
    HandEdit("NetworkPolicy", "spec.ingress.0.from.0.podSelector.matchLabels.extra", "x"),
    HandEdit("ConfigMap", "data.more", "x"),
    HandEdit("ConfigMap", "binaryData", {"more": "eA=="}),
    HandEdit("ConfigMap", "immutable", value=True),
    HandEdit("Deployment", "spec.minReadySeconds", 600),
    HandEdit("Deployment", "spec.selector.matchLabels.extra", "x"),
    HandEdit("Deployment", "spec.template.spec.nodeSelector", {"a": "b"}),
    HandEdit("Deployment", "spec.template.spec.hostNetwork", value=True),
    HandEdit("Deployment", "spec.template.spec.priorityClassName", "low"),
    HandEdit("Deployment", "spec.template.spec.initContainers.plugin.restartPolicy", "Always"),
    HandEdit("Deployment", "spec.template.spec.topologySpreadConstraints.0.nodeTaintsPolicy", "Honor"),
    HandEdit(
        "Deployment",
        "spec.template.spec.topologySpreadConstraints",
        [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}],
    ),
    HandEdit("Deployment", "spec.template.spec.hostAliases", [{"ip": "192.0.2.1", "hostnames": ["x"]}]),
    HandEdit("Deployment", "spec.template.spec.tolerations", [{"operator": "Exists"}]),
    HandEdit("Deployment", "spec.template.spec.runtimeClassName", "gvisor"),
    HandEdit("Deployment", f"spec.{ENGINE}.imagePullPolicy", "Always"),
    HandEdit("Deployment", f"spec.{AGENT}.imagePullPolicy", "Never"),
    HandEdit("Deployment", f"spec.{ENGINE}.env.VLLM_API_KEY", {"value": "x"}),
    HandEdit("Deployment", f"spec.{ENGINE}.env.VLLM_PLUGINS.valueFrom", {"fieldRef": {"fieldPath": "metadata.name"}}),
    HandEdit("Deployment", f"spec.{ENGINE}.envFrom", [{"secretRef": {"name": "x"}}]),
    HandEdit("Deployment", f"spec.{ENGINE}.volumeMounts", [{"name": "keys", "mountPath": "/x"}]),
    HandEdit("Deployment", f"spec.{ENGINE}.ports", [{"containerPort": 9, "protocol": "TCP"}]),
    HandEdit("Deployment", f"spec.{ENGINE}.workingDir", "/x"),
    HandEdit("Deployment", f"spec.{ENGINE}.lifecycle", {"preStop": {"sleep": {"seconds": 9}}}),
    HandEdit("Deployment", f"spec.{ENGINE}.readinessProbe", {"exec": {"command": ["false"]}}),
    HandEdit("Deployment", f"spec.{ENGINE}.securityContext.runAsUser", 0),
    HandEdit("Deployment", f"spec.{ENGINE}.securityContext.runAsNonRoot", value=False),
    HandEdit("Deployment", f"spec.{ENGINE}.resources.limits", {"cpu": "1"}),
    HandEdit(
        "Deployment", f"spec.{AGENT}.env.CACHEFLEET_RANKS.valueFrom", {"fieldRef": {"fieldPath": "metadata.name"}}
    ),
    HandEdit("Deployment", "spec.template.spec.volumes.tmp.emptyDir.sizeLimit", "1Mi"),
]
"""What is added to."""

CHANGES: Final = [
    HandEdit("ServiceAccount", "automountServiceAccountToken", value=True),
    HandEdit("ServiceAccount", "automountServiceAccountToken", None),
    HandEdit("ConfigMap", "data", {"policy.json": "{}"}),
    HandEdit("ConfigMap", "data", None),
    HandEdit("Service", "spec.selector", {"app": "other"}),
    HandEdit("Service", "spec.ports.engine.port", 9000),
    HandEdit("Service", "spec.ports.engine.targetPort", 9000),
    HandEdit("Service", "spec.ports", [], replaces=True),
    HandEdit("PodDisruptionBudget", "spec.maxUnavailable", 0),
    HandEdit("PodDisruptionBudget", "spec.selector", {"matchLabels": {"app": "other"}}),
    HandEdit("PodDisruptionBudget", "spec.unhealthyPodEvictionPolicy", "IfHealthyBudget"),
    HandEdit("NetworkPolicy", "spec.ingress", [{}], replaces=True),
    HandEdit("NetworkPolicy", "spec.ingress", [], replaces=True),
    HandEdit("NetworkPolicy", "spec.ingress", [{"from": [{"podSelector": {}}]}]),
    HandEdit("NetworkPolicy", "spec.policyTypes", ["Egress"]),
    HandEdit("NetworkPolicy", "spec.podSelector", {"matchLabels": {"app": "other"}}),
    HandEdit(
        "Deployment",
        "metadata.labels",
        {"app.kubernetes.io/managed-by": "cachefleet-operator", "cachefleet.io/pool": "demo"},
    ),
    *(
        HandEdit(kind, "metadata.labels", {"app.kubernetes.io/managed-by": "cachefleet-operator"})
        for kind in ("Service", "ConfigMap", "PodDisruptionBudget")
    ),
    HandEdit("Deployment", "spec.replicas", 5),
    HandEdit("Deployment", "spec.strategy", {"type": "Recreate"}),
    HandEdit("Deployment", "spec.strategy.rollingUpdate.maxUnavailable", 2),
    HandEdit("Deployment", "spec.progressDeadlineSeconds", 9),
    HandEdit("Deployment", "spec.revisionHistoryLimit", 0),
    HandEdit("Deployment", f"spec.{ENGINE}.image", "example.org/other:1"),
    HandEdit("Deployment", f"spec.{ENGINE}.command", ["sleep"], replaces=True),
    HandEdit("Deployment", f"spec.{ENGINE}.args", ["--seed=1"]),
    HandEdit("Deployment", f"spec.{ENGINE}.env.VLLM_PLUGINS.value", ""),
    HandEdit("Deployment", f"spec.{ENGINE}.startupProbe", {"tcpSocket": {"port": 8000}}),
    HandEdit("Deployment", f"spec.{ENGINE}.livenessProbe.failureThreshold", 1),
    HandEdit("Deployment", f"spec.{ENGINE}.securityContext", {"runAsUser": 0}),
    HandEdit("Deployment", f"spec.{ENGINE}.volumeMounts", [], replaces=True),
    HandEdit("Deployment", f"spec.{AGENT}.env", [], replaces=True),
    HandEdit("Deployment", f"spec.{AGENT}.readinessProbe", None),
    HandEdit("Deployment", f"spec.{ENGINE}.securityContext.allowPrivilegeEscalation", None),
    HandEdit("Deployment", "spec.template.spec.automountServiceAccountToken", None),
    HandEdit("Deployment", "spec.template.spec.serviceAccountName", "default"),
    HandEdit("Deployment", "spec.template.spec.terminationGracePeriodSeconds", 1),
]
"""What is changed or removed."""
