"""The fields of a worker pod that ``spec.podTemplate`` may not replace, since workers and fleet rest on them (pure).

The pod is compared before and after the patch, so it does not matter how a patch says it: by a new value, by another
entry of the same name, or by null.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_core.pool.managed_arguments import MANAGED_VARIABLES
from cachefleet_operator.manifests.container import Manifest

_SPEC: Final = "spec.podTemplate.spec"
_OWN: Final = "is cachefleet's own and cannot be replaced or removed"
_HINTS: Final[Mapping[str, str]] = {
    "args": "set spec.engine.extraArgs",
    "env[PYTHONPATH]": "set it in spec.engine.env, to which cachefleet's value is added",
    "env[VLLM_PLUGINS]": "set it in spec.engine.env, to which cachefleet's value is added",
    "envFrom": "name each variable in spec.engine.env, with valueFrom",
}
_FREE_VOLUMES: Final = frozenset({"agent-tmp", "cache", "shm", "tmp"})
"""Volumes without a meaning to others, of which a pool may make another kind."""
_RESERVED: Final = frozenset({*MANAGED_VARIABLES, "PYTHONPATH", "VLLM_PLUGINS"})
"""Variables of the engine that a pool may neither replace nor add; all others are its matter."""
_PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")
_REMOVABLE: Final = "livenessProbe"
"""The one that only ends a container that hangs."""
_NUMBERS: Final = frozenset(
    {
        "failureThreshold",
        "initialDelaySeconds",
        "periodSeconds",
        "successThreshold",
        "terminationGracePeriodSeconds",
        "timeoutSeconds",
    }
)
"""What a pool may set of a probe of ours."""


@dataclass(frozen=True, slots=True)
class _Container:
    """A container of ours before and after the patch."""

    where: str
    ours: Manifest
    patched: Manifest

    def changed(self, name: str) -> bool:
        return bool(self.ours.get(name) != self.patched.get(name))

    def entries(self, name: str, key: str) -> tuple[Manifest, Manifest]:
        """The entries of a list by their ``key``, before and after; "" stands for one without it."""
        before, after = ({str(each.get(key, "")): each for each in _entries(side, name)} for side in self._sides)
        return before, after

    @property
    def _sides(self) -> tuple[Manifest, Manifest]:
        return self.ours, self.patched


def replaced(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Descriptions of our fields that a patch replaces or removes; both are pod specs."""
    for part in ("initContainers", "containers"):
        patched = {each.get("name"): each for each in _entries(after, part)}
        for ours in before[part]:
            where = f"{_SPEC}.{part}[{ours['name']}]"
            found = patched.get(ours["name"])
            if found is None:
                yield f"{where}: {_OWN}"
            else:
                yield from _in_container(_Container(where, ours, found), engine=part == "containers")
    volumes = {each.get("name"): each for each in _entries(after, "volumes")}
    for volume in before["volumes"]:
        if volume["name"] not in _FREE_VOLUMES and volumes.get(volume["name"]) != volume:
            yield f"{_SPEC}.volumes[{volume['name']}]: {_OWN}"


def _in_container(container: _Container, *, engine: bool) -> Iterator[str]:
    fields = [name for name in ("command", "args", "envFrom", "restartPolicy") if container.changed(name)]
    fields += _variables(container, engine=engine)
    fields += _ports(container)
    fields += [name for name in _PROBES if _is_other_probe(container, name)]
    fields += _mounts(container)
    for field in fields:
        hint = _HINTS.get(field, "") if engine else ""
        yield f"{container.where}.{field}: {_OWN}" + (f"; {hint}" if hint else "")


def _variables(container: _Container, *, engine: bool) -> list[str]:
    """Of the engine those that are reserved, of other containers those that they have."""
    before, after = container.entries("env", "name")
    names = _RESERVED if engine else before.keys() | {"CACHEFLEET_TLS_FOLDER"}
    return [f"env[{name}]" for name in sorted(names) if before.get(name) != after.get(name)]


def _ports(container: _Container) -> list[str]:
    before, after = container.entries("ports", "containerPort")
    return [f"ports[{number}]" for number, port in before.items() if after.get(number) != port]


def _is_other_probe(container: _Container, name: str) -> bool:
    ours, patched = container.ours.get(name), container.patched.get(name)
    if ours is None or (patched is None and name == _REMOVABLE):
        return False
    return _asked(ours) != _asked(patched or {})


def _asked(probe: Manifest) -> Manifest:
    return {name: value for name, value in probe.items() if name not in _NUMBERS}


def _mounts(container: _Container) -> list[str]:
    """Mounts of ours, and others inside of them: a file of a Secret can be hidden by a mount of its own."""
    before, after = container.entries("volumeMounts", "mountPath")
    ours = {path: mount for path, mount in before.items() if mount["name"] not in _FREE_VOLUMES}
    found = {path for path, mount in ours.items() if after.get(path) != mount}
    found |= {path for path in after.keys() - before.keys() if _is_inside(path, tuple(ours))}
    return [f"volumeMounts[{path}]" for path in sorted(found)]


def _is_inside(path: str, folders: tuple[str, ...]) -> bool:
    whole = posixpath.normpath(path)
    return any(whole == folder or whole.startswith(f"{folder}/") for folder in folders)


def _entries(value: Mapping[str, Any], name: str) -> list[Manifest]:
    """A list of mappings; whatever else somebody put there is the API server's to refuse."""
    found = value.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
