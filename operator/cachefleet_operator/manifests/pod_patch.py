"""Strategic merge of ``spec.podTemplate`` into a worker's pod template, for the lists that pods have (pure).

Mappings merge, null deletes (where it arrives: see ``pod_removals``), lists of named entries merge by name and other
lists are replaced; a variable or volume given again replaces the one of its name whole, because its source is one of
several alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

Json = Any

MERGE_KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""By which field entries of a list are named, as in Kubernetes itself."""
_WHOLE: Final = frozenset({"env", "volumes"})
"""Lists whose entries are unions: a new entry replaces the old one of its name."""


def merged(base: Mapping[str, Json], patch: Mapping[str, Json]) -> dict[str, Json]:
    """``base`` with ``patch`` applied; neither is changed."""
    result = deepcopy(dict(base))
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged_value(name, result.get(name), deepcopy(value))
    return result


def _merged_value(name: str, old: Json, new: Json) -> Json:
    if isinstance(new, Mapping):
        return merged(old if isinstance(old, Mapping) else {}, new)
    key = MERGE_KEYS.get(name)
    if key and _named(new, key):
        return _merged_list(old if _named(old, key) else [], new, key, whole=name in _WHOLE)
    return new


def _named(entries: Json, key: str) -> bool:
    return isinstance(entries, list) and all(
        isinstance(entry, Mapping) and isinstance(entry.get(key), str | int) for entry in entries
    )


def _merged_list(old: list[Json], new: list[Json], key: str, *, whole: bool) -> list[Json]:
    result = {entry[key]: entry for entry in old}
    for entry in new:
        known = result.get(entry[key])
        result[entry[key]] = merged({} if known is None or whole else known, entry)
    return list(result.values())
