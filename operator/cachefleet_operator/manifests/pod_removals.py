"""Removal of what cachefleet puts into a pod, by the paths of ``spec.podTemplate.remove`` (pure).

A path is a JSON Pointer (RFC 6901) in which an entry of a list is named by its merge key: ``/spec/containers/engine``.
Unlike a null, a list of paths survives every way in which a manifest is applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from cachefleet_operator.manifests.pod_patch import MERGE_KEYS

Json = Any


def without(template: Mapping[str, Json], paths: Sequence[str]) -> dict[str, Json]:
    """``template`` without what the paths name; it is not changed. LookupError where a path names nothing."""
    result = deepcopy(dict(template))
    for path in paths:
        _remove(result, path)
    return result


def _remove(template: Json, path: str) -> None:
    tokens = [token.replace("~1", "/").replace("~0", "~") for token in path.split("/")[1:]]
    field, parent = "", template
    for number, token in enumerate(tokens):
        there = _children(parent, field)
        if token not in there:
            where = "/".join(path.split("/")[: number + 1]) or "/"
            known = f"has {', '.join(sorted(there))}" if there else "has nothing by a name"
            raise LookupError(f"{path} names nothing in a worker's pod; {where} {known}")
        if number == len(tokens) - 1:
            del parent[there[token]]
            return
        field, parent = token, parent[there[token]]


def _children(parent: Json, field: str) -> dict[str, Json]:
    """The key or index of each child by the token that names it; ``field`` is the name of ``parent``."""
    if isinstance(parent, Mapping):
        return {name: name for name in parent}
    key = MERGE_KEYS.get(field)
    if not isinstance(parent, list) or key is None:
        return {}
    return {str(entry[key]): index for index, entry in enumerate(parent) if key in entry}
