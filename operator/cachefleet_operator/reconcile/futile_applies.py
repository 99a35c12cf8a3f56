"""Objects that do not become what is applied: something in the cluster puts it back, or the server leaves it out.

An admission webhook that rewrites images does so, or a field of a feature that is off. Applying it again and again
would change nothing, and the pool would never be said to run as it is. So what was applied in vain is not applied again
before either side has changed.
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
    """The digest of what is to be applied, as stamped; "" where it is not stamped."""
    return str((manifest["metadata"].get("annotations") or {}).get(DIGEST, ""))


class FutileApplies:
    """What was applied in vain. At most one entry for each object that a pool may own."""

    def __init__(self) -> None:
        self._met: dict[Ref, tuple[str, str]] = {}

    def met(self, manifest: Manifest, before: Manifest | None, after: Manifest) -> bool:
        """Applying made ``after`` of ``before``; whether that was in vain."""
        if before is None or _said(before) != _said(after):
            return False
        self._met[Ref.of(dict(manifest))] = (applied(manifest), _said(after))
        return True

    def among(self, children: Mapping[Ref, Manifest]) -> frozenset[tuple[Ref, str]]:
        """Those that last: each object with the digest of what need not be applied to it."""
        return frozenset(
            (ref, self._met[ref][0])
            for ref, child in children.items()
            if ref in self._met and self._met[ref][1] == _said(child)
        )

    def forget(self, refs: Iterable[Ref]) -> None:
        for ref in refs:
            self._met.pop(ref, None)


def _said(live: Manifest) -> str:
    """All that an object says but its status, as a digest."""
    metadata = {name: value for name, value in live["metadata"].items() if name not in _VOLATILE}
    text = json.dumps({**live, "metadata": metadata, "status": None}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
