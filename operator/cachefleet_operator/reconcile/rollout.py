"""Pauses rollouts that fail: from old and new pods to whether the Deployment is to be paused (pure).

A pod carries the digest of the template it was made from, so old and new are told apart without ReplicaSets. The
rules: nothing is paused where the template changes, at a first rollout, or where no old worker is ready any more; a
rollout is paused where a new worker is in lasting trouble, or none is ready when the Deployment's deadline has passed;
once paused it goes on when no new worker is unready, also where none is left. Hit ratios of new workers do not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachefleet_operator import names
from cachefleet_operator.kube.drift import DIGEST, stamped
from cachefleet_operator.status.pods import Pod, worst

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rollout:
    """State of a rollout."""

    changing: bool
    """The Deployment is to get another template, or there is none yet."""
    old_ready: bool
    """A worker of another template is ready."""
    new_all_ready: bool
    """All workers of the new template are ready; there may be none."""
    new_fail: bool
    """One of them is in lasting trouble, or none was ready before the deadline."""
    paused: bool
    """The live Deployment is paused."""


def pause(rollout: Rollout) -> bool:
    """Whether the Deployment is to be paused."""
    if rollout.changing or not rollout.old_ready:
        return False
    if rollout.paused:
        return not rollout.new_all_ready
    return rollout.new_fail and not rollout.new_all_ready


def rests(rollout: Rollout) -> bool:
    """Whether no rollout of the pool's own is under way."""
    return not rollout.changing and not rollout.old_ready


def rollout_of(desired: Mapping[str, Any], live: Mapping[str, Any] | None, pods: Sequence[Pod]) -> Rollout:
    """Read the state of a rollout. ``desired`` is a marked Deployment, ``live`` the existing one."""
    template = digest_of(desired)
    staying = [pod for pod in pods if not pod.leaving]
    new = [pod for pod in staying if pod.template == template]
    ready = [pod for pod in new if pod.ready]
    lasting = worst(new)
    return Rollout(
        changing=live is None or digest_of(live) != template,
        old_ready=any(pod.ready for pod in staying if pod.template != template),
        new_all_ready=len(ready) == len(new),
        # The deadline's condition outlives a pause; once one is ready, the next is not late for it.
        new_fail=(lasting is not None and lasting.lasting) or (not ready and overdue(live)),
        paused=is_paused(live),
    )


def is_paused(deployment: Mapping[str, Any] | None) -> bool:
    """Whether a Deployment is paused."""
    return bool(deployment and (deployment.get("spec") or {}).get("paused"))


def deadline(deployment: Mapping[str, Any] | None) -> float:
    """Seconds within which a worker is to be ready; infinite where there is no Deployment."""
    return float((deployment or {}).get("spec", {}).get("progressDeadlineSeconds", "inf"))


def may_surge(deployment: Mapping[str, Any] | None) -> bool:
    """Whether a rollout starts a new worker before an old one has gone."""
    strategy = ((deployment or {}).get("spec") or {}).get("strategy") or {}
    return (strategy.get("rollingUpdate") or {}).get("maxSurge") not in {0, "0%"}


def overdue(deployment: Mapping[str, Any] | None) -> bool:
    """Whether the Deployment controller reports that the present spec does not progress."""
    status = (deployment or {}).get("status") or {}
    if not deployment or status.get("observedGeneration") != deployment["metadata"].get("generation"):
        return False
    return any(
        each.get("type") == "Progressing" and each.get("status") == "False" for each in status.get("conditions") or ()
    )


def marked(deployment: Mapping[str, Any], *, paused: bool = False) -> Manifest:
    """The Deployment with its template's digest as an annotation of its pods, and paused or not."""
    spec = deployment["spec"]
    template = spec["template"]
    metadata = template["metadata"]
    annotations = {name: text for name, text in metadata.get("annotations", {}).items() if name != names.TEMPLATE}
    plain = {**template, "metadata": {**metadata, "annotations": annotations}}
    mark = {names.TEMPLATE: _digest(plain)}
    template = {**plain, "metadata": {**metadata, "annotations": annotations | mark}}
    return stamped({**deployment, "spec": {**spec, "paused": paused, "template": template}})


def last_applied(deployment: Mapping[str, Any], live: Mapping[str, Any] | None) -> Manifest:
    """The marked Deployment, paused or not as it was when it was applied last; as the live one where it never was."""
    marks = [marked(deployment, paused=each) for each in (is_paused(live), not is_paused(live))]
    return next((each for each in marks if live and _stamp(each) == _stamp(live)), marks[0])


def _stamp(deployment: Mapping[str, Any]) -> str:
    return str((deployment["metadata"].get("annotations") or {}).get(DIGEST, ""))


def digest_of(deployment: Mapping[str, Any]) -> str:
    """The template digest that a Deployment's pods carry, "" where they carry none."""
    metadata = deployment["spec"].get("template", {}).get("metadata") or {}
    return str((metadata.get("annotations") or {}).get(names.TEMPLATE, ""))


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
