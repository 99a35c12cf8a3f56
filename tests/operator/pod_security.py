"""The Pod Security Standard "restricted" (Kubernetes 1.37) as a checker: what of a pod's spec it forbids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
HOST = ("hostNetwork", "hostPID", "hostIPC")


def violations(pod: dict[str, Any]) -> list[str]:
    """One line for each, by where it is."""
    return [*_of_the_pod(pod), *(line for each in _containers(pod) for line in _of_a_container(each, pod))]


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"], *pod.get("ephemeralContainers", [])]


def _of_the_pod(pod: dict[str, Any]) -> Iterator[str]:
    yield from (name for name in HOST if pod.get(name))
    for volume in pod.get("volumes", []):
        yield from (f"volume {volume['name']}: {kind}" for kind in volume.keys() - {"name"} - VOLUMES)
    if (pod.get("securityContext") or {}).get("sysctls"):
        yield "sysctls"


def _of_a_container(container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    name, own = container["name"], container.get("securityContext") or {}
    effective = {**(pod.get("securityContext") or {}), **own}
    if own.get("privileged"):
        yield f"{name}: privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities"
    if effective.get("runAsNonRoot") is not True or effective.get("runAsUser") == 0:
        yield f"{name}: runAsNonRoot"
    if (effective.get("seccompProfile") or {}).get("type") not in {"RuntimeDefault", "Localhost"}:
        yield f"{name}: seccompProfile"
    yield from (f"{name}: hostPort" for port in container.get("ports", []) if port.get("hostPort"))
    hooks = [*(container.get("lifecycle") or {}).values(), *(container.get(f"{p}Probe") or {} for p in _PROBES)]
    yield from (f"{name}: host of a hook" for hook in hooks if (hook.get("httpGet") or {}).get("host"))


_PROBES = ("liveness", "readiness", "startup")
