"""An API server in memory: as much of it as the operator depends on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from cachefleet_operator.kube.objects import Ref
from cachefleet_runtime.kubernetes import KubernetesError, Object, RefusedError, RetryableError


class CrashError(BaseException):
    """The process is gone. Not an Exception: nothing may catch it."""


class Store:
    """Objects by identity. ``before`` is called ahead of every request and may raise or let time pass.

    ``writes`` lists what changed or was told, Leases left out; with ``crash_after`` set to k, the process dies after
    its k-th write has been carried out.
    """

    def __init__(self, *objects: Object) -> None:
        self._versions = itertools.count(100)
        self._uids = itertools.count(1)
        self.objects: dict[Ref, Object] = {}
        self._applied: dict[tuple[Ref, str], Object] = {}
        self.writes: list[tuple[str, Ref]] = []
        self.crash_after: int | None = None
        self.unserved: set[str] = set()
        """Kinds that this server does not know."""
        self.before: Callable[[str, Ref], None] = lambda _verb, _ref: None
        for each in objects:
            self.objects[Ref.of(each)] = deepcopy(each)

    async def get(self, ref: Ref) -> Object | None:
        self.before("get", ref)
        return deepcopy(self.objects.get(ref))

    async def list(
        self, kind: str, namespace: str, *, page: int, selector: str = "", fields: str = ""
    ) -> list[Object] | None:
        self.before("list", Ref(kind, namespace, ""))
        if kind in self.unserved:
            return None
        uid, name = (fields.partition(f"{field}=")[2] for field in ("involvedObject.uid", "metadata.name"))
        parts = selector.split(",") if selector else []
        wanted = dict(part.split("=") for part in parts if not part.startswith("!"))
        absent = {part[1:] for part in parts if part.startswith("!")}
        return [
            deepcopy(each)
            for ref, each in self.objects.items()
            if (ref.kind, ref.namespace) == (kind, namespace)
            and (not uid or each["involvedObject"]["uid"] == uid)
            and (not name or ref.name == name)
            and wanted.items() <= (each["metadata"].get("labels") or {}).items()
            and not absent & (each["metadata"].get("labels") or {}).keys()
        ]

    async def create(self, manifest: Object) -> Object:
        ref = Ref.of(manifest)
        self.before("create", ref)
        if ref in self.objects:
            raise RetryableError(409, "AlreadyExists", f"{ref} exists")
        return self._store("create", ref, deepcopy(manifest))

    async def replace(self, manifest: Object) -> Object:
        ref = Ref.of(manifest)
        self.before("update", ref)
        self._check(ref, manifest["metadata"])
        return self._store("update", ref, deepcopy(manifest))

    async def rewrite(self, manifest: Object) -> Object:
        ref = Ref.of(manifest)
        self.before("patch", ref)
        self._check(ref, manifest["metadata"])
        parts = {name: value for name, value in manifest.items() if name != "metadata"}
        written = {**deepcopy(self.objects[ref]), **deepcopy(parts)}
        return self._store("patch", ref, {name: value for name, value in written.items() if value is not None})

    async def annotate(self, manifest: Object) -> Object:
        ref = Ref.of(manifest)
        self.before("patch", ref)
        if ref not in self.objects:
            raise RefusedError(404, "NotFound", f"{ref} not found")
        if manifest["metadata"]["uid"] != self.objects[ref]["metadata"]["uid"]:
            raise RefusedError(422, "Invalid", "the server rejected our request due to an error in our request")
        return self._store("patch", ref, _laid_over(deepcopy(self.objects[ref]), manifest))

    async def scale(self, manifest: Object) -> Object:
        ref = Ref.of(manifest)
        self.before("scale", ref)
        self._check(ref, manifest["metadata"])
        return self._store("scale", ref, _laid_over(deepcopy(self.objects[ref]), {"spec": manifest["spec"]}))

    async def delete(self, manifest: Object) -> Object:
        ref = Ref.of(manifest)
        self.before("delete", ref)
        self._check(ref, manifest["metadata"])
        self._count("delete", ref)
        return self.objects.pop(ref)

    async def apply(self, manifest: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        ref = Ref.of(manifest)
        self.before("patch", ref)
        if subresource and ref not in self.objects:
            raise RefusedError(404, "NotFound", f"{ref} not found")
        self._check(ref, manifest["metadata"])
        live = deepcopy(self.objects.get(ref, {}))
        old = self._applied.get((ref, subresource), {})
        wanted = {"status": manifest["status"]} if subresource else deepcopy(manifest)
        made: Object = _laid_over(_without(live, old, wanted), wanted)
        if dry_run:
            return made
        self._applied[ref, subresource] = deepcopy(manifest)
        return self._store("patch", ref, made)

    def settle(self) -> None:
        """What controllers do: every Deployment gets its pods, all ready."""
        for ref, each in self.objects.items():
            if ref.kind == "Deployment":
                count = each["spec"]["replicas"]
                each["status"] = {
                    "observedGeneration": each["metadata"]["generation"],
                    **dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas"), count),
                }

    def _store(self, verb: str, ref: Ref, value: Object) -> Object:
        live = self.objects.get(ref)
        if live is None:
            value["metadata"] |= {"uid": f"made-{next(self._uids)}", "generation": 1}
        elif live.get("spec") != value.get("spec"):
            value["metadata"]["generation"] = live["metadata"].get("generation", 1) + 1
        if live is None or live != value:
            value["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[ref] = value
        if ref.kind != "Lease":
            self._count(verb, ref)
        return deepcopy(value)

    def _count(self, verb: str, ref: Ref) -> None:
        self.writes.append((verb, ref))
        if self.crash_after is not None and len(self.writes) >= self.crash_after:
            raise CrashError

    def _check(self, ref: Ref, metadata: Mapping[str, Any]) -> None:
        live = self.objects.get(ref, {"metadata": {}})["metadata"]
        for name in ("uid", "resourceVersion"):
            if name in metadata and metadata[name] != live.get(name):
                raise _conflict(ref, name)


def _conflict(ref: Ref, name: str) -> KubernetesError:
    return RetryableError(409, "Conflict", f"{ref}: another {name}")


def _laid_over(live: Any, wanted: Any) -> Any:
    if isinstance(live, dict) and isinstance(wanted, dict):
        return {**live, **{name: _laid_over(live.get(name), value) for name, value in wanted.items()}}
    return deepcopy(wanted)


def _without(live: Any, old: Any, wanted: Any) -> Any:
    """``live`` without what was applied before and is not wanted any more."""
    if not isinstance(live, dict) or not isinstance(old, dict):
        return live
    kept = {}
    for name, value in live.items():
        if name in old and name not in wanted and name not in ("apiVersion", "kind", "metadata"):
            continue
        inner = wanted.get(name) if isinstance(wanted, dict) else None
        kept[name] = _without(value, old.get(name), inner if isinstance(inner, dict) else {}) if inner else value
    return kept
