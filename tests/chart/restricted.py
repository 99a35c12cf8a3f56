"""What a pod breaks of the Pod Security Standard `restricted`, and of our own rule of read-only roots (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

Object = dict[str, Any]

VOLUMES: Final = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
HOST: Final = ("hostNetwork", "hostPID", "hostIPC")


def violations(pod: Object) -> list[str]:
    """One line each; none for a pod that may run in a namespace with enforce: restricted."""
    return [*_of_pod(pod), *(line for container in _containers(pod) for line in _of_container(pod, container))]


def _containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", ()), *pod["containers"], *pod.get("ephemeralContainers", ())]


def _of_pod(pod: Object) -> Iterator[str]:
    yield from (f"{name} is on" for name in HOST if pod.get(name))
    for volume in pod.get("volumes", ()):
        if not (set(volume) - {"name"}) <= VOLUMES:
            yield f"volume {volume['name']}: {sorted(set(volume) - {'name'})}"
    if pod.get("securityContext", {}).get("sysctls"):
        yield "sysctls are set"


def _of_container(pod: Object, container: Object) -> Iterator[str]:
    name, own = container["name"], container.get("securityContext", {})
    both = {**pod.get("securityContext", {}), **own}
    rules = {
        "runAsNonRoot is not true": both.get("runAsNonRoot") is True,
        "runAsUser is 0 or no number": isinstance(both.get("runAsUser"), int) and both["runAsUser"] > 0,
        "seccompProfile is not RuntimeDefault": both.get("seccompProfile", {}).get("type") == "RuntimeDefault",
        "allowPrivilegeEscalation is not false": own.get("allowPrivilegeEscalation") is False,
        "privileged": not own.get("privileged"),
        "capabilities are not all dropped": own.get("capabilities") == {"drop": ["ALL"]},
        "readOnlyRootFilesystem is not true": own.get("readOnlyRootFilesystem") is True,
        "procMount is set": own.get("procMount", "Default") == "Default",
        "host ports are used": not any(port.get("hostPort") for port in container.get("ports", ())),
    }
    yield from (f"{name}: {rule}" for rule, kept in rules.items() if not kept)
