"""Remembers applies that changed nothing: something in the cluster reverts them, or the server drops a field.

Causes are an admission webhook that rewrites images, or a field of a feature that is off. Applying again would change
nothing, and the pool would never count as settled. So such an apply is not repeated before the manifest or the live
object changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from cachefleet_operator.kube.drift import DIGEST
from cachefleet_operator.kube.objects import Ref

Manifest = Mapping[str, Any]
_VOLATILE = ("resourceVersion", "managedFields")


def applied(manifest: Manifest) -> str:
    """The digest stamped on a manifest, "" where there is none."""
    return str((manifest["metadata"].get("annotations") or {}).get(DIGEST, ""))


class FutileApplies:
    """Applies that changed nothing. At most one entry for each object that a pool may own."""

    def __init__(self) -> None:
        self._met: dict[Ref, tuple[str, str]] = {}

    def met(self, manifest: Manifest, before: Manifest | None, after: Manifest) -> bool:
        """Record an apply that made ``after`` of ``before``; returns whether it changed nothing."""
        if before is None or _content(before) != _content(after):
            return False
        self._met[Ref.of(dict(manifest))] = (applied(manifest), _content(after))
        return True

    def among(self, children: Mapping[Ref, Manifest]) -> frozenset[tuple[Ref, str]]:
        """Entries for children that have not changed since: each object with the digest not to apply to it again."""
        return frozenset(
            (ref, self._met[ref][0])
            for ref, child in children.items()
            if ref in self._met and self._met[ref][1] == _content(child)
        )

    def forget(self, refs: Iterable[Ref]) -> None:
        """Drop the entries of these objects."""
        for ref in refs:
            self._met.pop(ref, None)


def _content(live: Manifest) -> str:
    """Digest of an object without its status and volatile metadata."""
    metadata = {name: value for name, value in live["metadata"].items() if name not in _VOLATILE}
    text = json.dumps({**live, "metadata": metadata, "status": None}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
