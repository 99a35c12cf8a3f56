"""Which pods are a pool's own by their names (pure).

A Service selects pods by a label, which anybody may give to a pod. The pods of a pool are made by the ReplicaSets of
its Deployment, which name them: that tells them apart without a right to read pods. It is no proof, which is the
token of the pod that its agent brings; and the operator, who reads pods and so their owners, names all others in the
pool's status.
"""

from __future__ import annotations

import re
from typing import Final

DEPLOYMENT_SUFFIX: Final = "-workers"
_HASH: Final = re.compile(r"[a-z0-9]{1,10}")
_SUFFIX: Final = re.compile(r"[a-z0-9]{5}")
_REVISION: Final = re.compile(r"[a-z0-9]{1,10}-?")
_LONGEST_BASE: Final = 58
"""Kubernetes cuts the name of a ReplicaSet to this before it adds a pod's own five characters."""


def is_replica_set(name: str, pool: str) -> bool:
    """Whether a ReplicaSet has a name as the pool's Deployment gives; ``pool`` is its name alone."""
    stem = f"{pool}{DEPLOYMENT_SUFFIX}-"
    return name.startswith(stem) and _HASH.fullmatch(name[len(stem) :]) is not None


def is_of_pool(pod: str, pool: str) -> bool:
    """Whether a pod has a name as the ReplicaSets of the pool's Deployment give; ``pool`` is its name alone."""
    base, own = pod[:-5], pod[-5:]
    stem = f"{pool}{DEPLOYMENT_SUFFIX}-"
    if not _SUFFIX.fullmatch(own) or not base.startswith(stem[:_LONGEST_BASE]):
        return False
    revision, cut = base[len(stem) :], len(base) == _LONGEST_BASE
    if cut and len(stem) >= _LONGEST_BASE:
        return True
    return bool(_REVISION.fullmatch(revision)) and (revision.endswith("-") or cut)
