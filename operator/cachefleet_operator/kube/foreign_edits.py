"""Fields of an object that other writers changed, and by whom: from manifest, live object and field managers.

Pure. An object whose digest is that of its manifest was applied as it is wanted now: what differs since is not ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_operator.kube.additions import additions
from cachefleet_operator.kube.drift import DIGEST, Path, differences
from cachefleet_operator.kube.objects import MANAGER

Manifest = Mapping[str, Any]

UNKNOWN: Final = "somebody"
_TEMPLATE: Final = ("spec", "template")
_REPLICAS: Final = ("spec", "replicas")


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit by another writer: the first field, and whether it concerns pods."""

    path: Path
    manager: str = UNKNOWN
    """Name of the field manager, as the API server has it."""
    subresource: str = ""
    """The subresource by which it was changed: "scale", or "" for the object itself."""
    template: bool = False
    """The pods of a Deployment are among it."""
    scales: bool = False
    """The number of pods is among it."""

    @property
    def field(self) -> str:
        """The path as text, "spec.template.spec.containers[engine].image"."""
        return "".join(part if part.startswith("[") else f".{part}" for part in self.path).removeprefix(".")


@dataclass(frozen=True, slots=True)
class _Manager:
    """What a field manager manages of an object."""

    name: str
    subresource: str
    time: str
    paths: tuple[Path, ...]


def foreign_edit(manifest: Manifest, live: Manifest) -> Edit | None:
    """In what the live object is not as it was applied; None where our manifest has changed too."""
    if _digest(live) not in {_digest(manifest), ""}:
        return None
    paths = [*differences(_meant(manifest), _meant(live)), *additions(manifest, live)]
    if not paths:
        return None
    path = paths[0]
    found = max(_managers(live), key=lambda each: (_nearness(each, path), each.time), default=None)
    return Edit(
        path,
        found.name if found else UNKNOWN,
        found.subresource if found else "",
        template=any(each[:2] == _TEMPLATE for each in paths),
        scales=_REPLICAS in paths,
    )


def _digest(manifest: Manifest) -> str:
    return str((manifest["metadata"].get("annotations") or {}).get(DIGEST, ""))


def _meant(manifest: Manifest) -> dict[str, Any]:
    """Without the digest, which others do not edit but may lose."""
    metadata = manifest["metadata"]
    annotations = {name: text for name, text in (metadata.get("annotations") or {}).items() if name != DIGEST}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _nearness(manager: _Manager, path: Path) -> int:
    """How much of the path leads to something that it manages."""
    return max((_common(path, each) for each in manager.paths), default=0)


def _common(one: Path, other: Path) -> int:
    return next(
        (number for number, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _managers(live: Manifest) -> list[_Manager]:
    """All others, but for those that write a status."""
    found = live["metadata"].get("managedFields") or ()
    return [
        _Manager(
            str(each.get("manager", "")),
            str(each.get("subresource", "")),
            str(each.get("time", "")),
            tuple(_paths(each.get("fieldsV1") or {}, ())),
        )
        for each in found
        if each.get("manager") != MANAGER and each.get("subresource") != "status"
    ]


def _paths(fields: Mapping[str, Any], path: Path) -> Iterator[Path]:
    """The leaves of managed fields, https://kubernetes.io/docs/reference/using-api/server-side-apply."""
    inner = [(_part(name), each) for name, each in fields.items() if name != "."]
    if not inner:
        yield path
    for part, each in inner:
        yield from _paths(each, (*path, part))


def _part(name: str) -> str:
    kind, _, text = name.partition(":")
    if kind != "k":
        return text
    return f"[{','.join(map(str, json.loads(text).values()))}]"
