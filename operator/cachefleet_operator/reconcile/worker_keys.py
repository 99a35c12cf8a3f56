"""The Secret of a pool's keys, compared with those derived from the fleet key: created, corrected, or reported (pure).

A pod reads its keys when its containers start, so the pod template says which ones (``mark``): a digest of the derived
keys, and how often their Secret was put right while pods may have read something else. A new mark replaces the pods.

The digest in the live Deployment also tells what has changed where Secret and fleet key disagree. Is it that of the
fleet key, then the Secret was changed, and is put right. Is it another, then the fleet key was changed: workers hold
the keys of the old one, which are not overwritten. Whoever rewrites the Secret again and again would have all pods
replaced each time, so it is put right once in REPAIR_PAUSE.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_operator import names
from cachefleet_operator.kube.objects import MANAGER
from cachefleet_operator.reconcile.plan import Manifest, Observed, owner_of
from cachefleet_operator.status.pods import Pod

SKEW: Final = dt.timedelta(seconds=60)
"""How much the clocks of nodes and API server may differ."""
REPAIR_PAUSE: Final = dt.timedelta(minutes=10)
_DIGITS: Final = 16


class KeysChangedError(Exception):
    """A pool's keys were not made from the fleet key that is in force; they are left as they are."""


class KeysRewrittenError(Exception):
    """A pool's keys were changed again soon after they were put right; they are left as they are for a while."""


@dataclass(frozen=True, slots=True)
class KeysPlan:
    """What to do about a pool's keys, and the mark of pods that hold them."""

    mark: str
    create: tuple[Manifest, ...] = ()
    renewed: tuple[Manifest, ...] = ()


def keys_plan(wanted: Manifest, observed: Observed, *, fleet_key: str, now: dt.datetime) -> KeysPlan:
    """From the wanted Secret and what is there; ``fleet_key`` names the Secret of that.

    KeysChangedError or KeysRewrittenError, with what to do.
    """
    live, digest = observed.keys, _digest(wanted)
    was, repairs = _read(_mark_of(observed.deployment))
    told, repaired = _repairs_of(live)
    repairs = max(repairs if was == digest else 0, told)
    if live is None:
        return KeysPlan(_written(digest, repairs), create=(wanted,))
    if wanted["data"].items() <= (live.get("data") or {}).items():
        return KeysPlan(_written(digest, repairs))
    if observed.deployment is not None and was != digest and owner_of(live) is not None:
        raise KeysChangedError(_changed_words(live["metadata"]["name"], fleet_key))
    if repaired is not None and now - repaired < REPAIR_PAUSE:
        raise KeysRewrittenError(_rewritten_words(live["metadata"]["name"], repaired))
    edited = _edited(live)
    repairs += any(_may_hold_others(pod, edited) for pod in observed.observations.pods)
    return KeysPlan(_written(digest, repairs), renewed=(_repaired(live, wanted, repairs, now),))


def _changed_words(name: str, fleet_key: str) -> str:
    return (
        f"Secret {name} does not hold the keys of the fleet key in Secret {fleet_key}: put the old fleet key back; or, "
        f"to take the new one, restart the control plane and delete Secret {name}: it is made anew, pods are replaced"
    )


def _rewritten_words(name: str, repaired: dt.datetime) -> str:
    return (
        f"Secret {name} was put right at {_stamp(repaired)}, and has been changed again: find out who writes it "
        f"(kubectl get secret {name} -o yaml --show-managed-fields), and stop that. It is put right again at "
        f"{_stamp(repaired + REPAIR_PAUSE)}"
    )


def _stamp(moment: dt.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _digest(secret: Manifest) -> str:
    """Digest of keys; they have 256 random bits each, so it reveals nothing of them."""
    text = "|".join(secret["data"][name] for name in (names.INDEX_KEY, names.WORKER_KEY))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _mark_of(deployment: Manifest | None) -> str:
    template: Mapping[str, Any] = ((deployment or {}).get("spec") or {}).get("template") or {}
    return str(((template.get("metadata") or {}).get("annotations") or {}).get(names.KEYS) or "")


def _read(mark: str) -> tuple[str, int]:
    digest, _, repairs = mark.partition("-")
    return digest, int(repairs) if repairs.isdecimal() else 0


def _written(digest: str, repairs: int) -> str:
    return f"{digest}-{repairs}" if repairs else digest


def _repairs_of(live: Manifest | None) -> tuple[int, dt.datetime | None]:
    """How often a Secret was put right while pods may have read something else, and when it was last."""
    text = str((((live or {}).get("metadata") or {}).get("annotations") or {}).get(names.KEYS_REPAIRS) or "")
    repairs, _, moment = text.partition("@")
    try:
        return int(repairs), dt.datetime.fromisoformat(moment)
    except ValueError:
        return 0, None


def _repaired(live: Manifest, wanted: Manifest, repairs: int, now: dt.datetime) -> Manifest:
    """The live Secret with the wanted keys; it keeps the number of repairs in case the next step is not reached."""
    metadata, ours = live["metadata"], wanted["metadata"]
    changed = {
        **metadata,
        "labels": {**(metadata.get("labels") or {}), **ours["labels"]},
        "annotations": {**(metadata.get("annotations") or {}), names.KEYS_REPAIRS: f"{repairs}@{_stamp(now)}"},
        "ownerReferences": ours["ownerReferences"],
    }
    return {**wanted, **live, "metadata": changed, "data": {**(live.get("data") or {}), **wanted["data"]}}


def _edited(live: Manifest) -> dt.datetime | None:
    """When somebody else last wrote it; None where that is not known."""
    entries = live["metadata"].get("managedFields") or ()
    times = [each["time"] for each in entries if each.get("manager") != MANAGER and each.get("time")]
    return dt.datetime.fromisoformat(max(times)) if times else None


def _may_hold_others(pod: Pod, edited: dt.datetime | None) -> bool:
    """Whether a pod may have read the Secret after it was changed."""
    return edited is None or pod.since is None or pod.since >= edited - SKEW
