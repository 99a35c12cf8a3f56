"""Plans a reconciliation: from a pool's desired and observed state to a list of actions (pure).

Level-triggered: plans depend on the present state, not on past events. After a plan is carried out the next is empty,
and one that was interrupted anywhere is continued by the next.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cachefleet_core.fleet_status.cache_worth import removal_values
from cachefleet_core.pool.admitted import last_admitted
from cachefleet_core.pool.spec import API_VERSION, KIND
from cachefleet_operator import names
from cachefleet_operator.devices.pool_claims import NO_TEMPLATES, ClaimTemplates
from cachefleet_operator.kube.additions import additions, without_additions
from cachefleet_operator.kube.drift import holds
from cachefleet_operator.kube.foreign_edits import Edit, foreign_edit
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.reasons import Reason
from cachefleet_operator.reconcile import rollout
from cachefleet_operator.reconcile.apply import (
    Action,
    Apply,
    Create,
    Delete,
    Emit,
    Replace,
    Rewrite,
    Scale,
    WriteStatus,
)
from cachefleet_operator.reconcile.deletion_cost import costs
from cachefleet_operator.reconcile.field_conflicts import Conflict, after
from cachefleet_operator.reconcile.futile_applies import applied
from cachefleet_operator.reconcile.released_pods import readopted
from cachefleet_operator.reconcile.replica_sets import ReplicaSet, can_pause, outdated
from cachefleet_operator.reconcile.rollout import Rollout
from cachefleet_operator.status.admission import admitted
from cachefleet_operator.status.events import Subject, events_of
from cachefleet_operator.status.pool_assessment import NOTHING, Observations, Verdict, workers_of
from cachefleet_operator.status.status import due, status, written_at

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Desired:
    """The verdict on a pool, and manifests to create, replace or apply.

    Where no worker may be started these are what workers need that run, or start anew by the last admitted spec:
    Secrets, and ``held``, which are applied then. ``create`` are never overwritten.
    """

    verdict: Verdict
    create: tuple[Manifest, ...] = ()
    apply: tuple[Manifest, ...] = ()
    renewed: tuple[Manifest, ...] = ()
    held: tuple[Manifest, ...] = ()
    last: Manifest | None = None
    """The Deployment among ``apply``, paused or not as it was when it was applied last."""
    keeps_pods: bool = False
    """It is paused for what somebody else writes into its pods."""

    def judged(self, verdict: Verdict) -> Desired:
        """The same under another verdict on the spec; problems found with the manifests stay."""
        if not verdict.admitted:
            return Desired(verdict)
        return replace(self, verdict=replace(verdict, invalid=self.verdict.invalid))


@dataclass(frozen=True, slots=True)
class Observed:
    """The pool as the API server has it, those of its objects that exist, and further observations."""

    pool: Manifest
    children: Mapping[Ref, Manifest] = field(default_factory=dict)
    observations: Observations = NOTHING
    in_vain: frozenset[tuple[Ref, str]] = frozenset()
    """Objects with the digest of a manifest that was applied to them and changed nothing."""
    pod_manifests: tuple[Manifest, ...] = ()
    """Of the pool's pods, and of those that have lost their pool's label."""
    conflicts: Mapping[Ref, Conflict] = field(default_factory=dict)
    """Of its objects those that somebody else edited lately."""
    autoscaler: str = ""
    """The one that scales its Deployment, where that is one of those edits; "" where none is known."""
    claims: ClaimTemplates = NO_TEMPLATES
    """Its ResourceClaimTemplates, which are among its objects, too."""
    replica_sets: tuple[ReplicaSet, ...] | None = None
    """Of its Deployment, where another writer changes its pods and they may be listed."""

    @property
    def deployment(self) -> Manifest | None:
        """The live Deployment of the pool's workers, None where there is none."""
        metadata = self.pool["metadata"]
        return self.children.get(Ref("Deployment", metadata["namespace"], names.deployment(metadata["name"])))

    @property
    def certificate(self) -> Manifest | None:
        """The live Secret of the workers' certificate, None where there is none."""
        metadata = self.pool["metadata"]
        return self.children.get(Ref("Secret", metadata["namespace"], names.certificate(metadata["name"])))

    @property
    def keys(self) -> Manifest | None:
        """The live Secret of the pool's keys, None where there is none."""
        metadata = self.pool["metadata"]
        return self.children.get(Ref("Secret", metadata["namespace"], names.keys(metadata["name"])))

    @property
    def namespace(self) -> str:
        """The pool's namespace."""
        return str(self.pool["metadata"]["namespace"])


@dataclass(frozen=True, slots=True)
class Clock:
    """The present time as text for objects, and the pause between status writes of figures alone, in seconds."""

    now: str
    status_seconds: float = 0.0

    @property
    def time(self) -> dt.datetime:
        """The present time."""
        return dt.datetime.fromisoformat(self.now)

    def since(self, moment: dt.datetime | None) -> float:
        """Seconds since ``moment``; infinite where that is None."""
        return float("inf") if moment is None else (self.time - moment).total_seconds()


def plan(desired: Desired, observed: Observed, clock: Clock) -> list[Action]:
    """All actions that are left to do, in order."""
    if taken := foreign(desired, observed):
        verdict = replace(desired.verdict, invalid=(Reason.NAME_TAKEN, f"{taken} exists and is not this pool's"))
        return [*_renewals(desired, observed), *report(verdict, observed, clock)]
    desired, paused = _paced(desired, observed, clock)
    seen = replace(observed.observations, paused=paused, contested=_contested(observed))
    observed = replace(observed, observations=seen)
    work = _children(desired, observed, clock)
    current = not any(_is_deployment(action) for action in work)
    back = readopted(_subject(observed), observed.pod_manifests, now=clock.now)
    work += _outdated(desired, observed)
    work += _superseded(desired, observed) if not work else []
    return [*back, *_costs(work, observed), *work, *report(desired.verdict, observed, clock, applied=current)]


def report(verdict: Verdict, observed: Observed, clock: Clock, *, applied: bool = True) -> list[Action]:
    """Actions that write status and events, from a verdict, the live Deployment and observations; none if not due."""
    wanted, wait = _status(verdict, observed, clock, applied=applied)
    if wait != 0.0:
        return []
    metadata = observed.pool["metadata"]
    previous = (observed.pool.get("status") or {}).get("conditions") or ()
    told = events_of(previous, wanted["conditions"], _subject(observed), now=clock.now)
    return [*(Emit(event) for event in told), WriteStatus(_status_manifest(metadata, wanted))]


def _subject(observed: Observed) -> Subject:
    metadata = observed.pool["metadata"]
    return Subject(metadata["name"], metadata["namespace"], metadata["uid"], metadata["resourceVersion"])


def look_again(desired: Desired, observed: Observed, clock: Clock) -> float | None:
    """Seconds after which the pool is to be reconciled without an event, None where it need not be."""
    waits = [pod.look_again for pod in observed.observations.pods if pod.look_again is not None]
    wait = _status(desired.verdict, observed, clock, applied=True)[1]
    paced = _paced(desired, observed, clock)[0] if observed.conflicts else Desired(desired.verdict)
    held = [wait for _, _, wait in _drifted(paced, observed, clock) if wait]
    return min([*waits, *held, *([wait] if wait else [])], default=None)


def is_new_edit(desired: Desired, observed: Observed) -> bool:
    """Whether the plan brings an edit in force that was not before, at a pool that runs."""
    copy = last_admitted(observed.pool)
    known = copy is not None and copy.generation == observed.pool["metadata"]["generation"]
    return desired.verdict.admitted and not known and observed.deployment is not None


def fewer_or_other_pods(desired: Desired, observed: Observed) -> bool:
    """Whether the plan deletes or replaces pods: their caches' values must be known before."""
    live = observed.deployment
    return any(
        live is not None and manifest["kind"] == "Deployment" and _takes_pods(manifest, live)
        for manifest in desired.apply
    )


def _status(verdict: Verdict, observed: Observed, clock: Clock, *, applied: bool) -> tuple[Manifest, float | None]:
    metadata, live = observed.pool["metadata"], observed.pool.get("status") or {}
    deployment = observed.deployment
    ours = deployment if deployment and names.is_ours(deployment) else None
    current = _of_template(rollout.digest_of(deployment), observed) if deployment and applied else frozenset()
    workers = workers_of(ours, wanted=verdict.replicas, applied=applied)
    wanted = status(
        verdict,
        workers,
        observed.observations,
        name=metadata["name"],
        generation=metadata["generation"],
        previous=live,
        now=clock.now,
        admitted=admitted(observed.pool, verdict, observed.observations.facts, current),
    )
    age = clock.since(written_at(observed.pool))
    return wanted, due(wanted, live, age=age, seconds=clock.status_seconds)


def _paced(desired: Desired, observed: Observed, clock: Clock) -> tuple[Desired, bool]:
    """``desired`` with its Deployment paused or not, and which; where none is applied, as the live one is."""
    live = observed.deployment
    paused, last, keeps = rollout.is_paused(live), None, False
    made = []
    for manifest in desired.apply:
        if manifest["kind"] == "Deployment":
            state = rollout.rollout_of(rollout.marked(manifest), live, observed.observations.pods)
            paused, last = rollout.pause(state), rollout.last_applied(manifest, live)
            keeps = _keeps_pods(last, state, observed, clock)
            made.append(rollout.marked(manifest, paused=paused or keeps))
        else:
            made.append(manifest)
    return replace(desired, apply=tuple(made), last=last, keeps_pods=keeps), paused


def _keeps_pods(last: Manifest, state: Rollout, observed: Observed, clock: Clock) -> bool:
    """Whether the Deployment is paused for what somebody else writes into its pods: from the same request on that sets
    it back, and while no rollout of the pool's own is under way.
    """
    live, ref = observed.deployment, Ref.of(last)
    conflict = observed.conflicts.get(ref)
    if live is not None and (edit := foreign_edit(last, live)):
        return after(conflict, ref, edit, clock.time).keeps_pods and not state.old_ready
    return conflict is not None and conflict.keeps_pods and rollout.rests(state) and _can_pause(observed)


def _can_pause(observed: Observed) -> bool:
    live, there = observed.deployment, observed.replica_sets
    return live is None or there is None or can_pause(live, there)


def _outdated(desired: Desired, observed: Observed) -> list[Scale]:
    """What a pause for another writer left over: ReplicaSets with pods of another template than the pool's."""
    live, last = observed.deployment, desired.last
    there = desired.keeps_pods and live and last and rollout.is_paused(live) and is_as_applied(last, live)
    return [Scale(dict(each)) for each in outdated(observed.replica_sets or ())] if there else []


def _superseded(desired: Desired, observed: Observed) -> list[Delete]:
    """ResourceClaimTemplates of former specs, once no pod can be made of them any more."""
    wanted, there = {Ref.of(each) for each in desired.apply}, observed.claims.templates
    workers = workers_of(observed.deployment, wanted=desired.verdict.replicas, applied=True)
    rests = desired.verdict.admitted and workers.settled
    return [Delete(each) for ref, each in there.items() if ref not in wanted] if rests else []


def _contested(observed: Observed) -> str:
    """The conflict message of the pool's objects, the Deployment's first; "" where no other writer is active."""
    found = [each for each in observed.conflicts.values() if each.contested]
    first = min(found, key=lambda each: (each.ref.kind != "Deployment", each.ref), default=None)
    return first.message(observed.pool["metadata"]["name"], scaler=observed.autoscaler) if first else ""


def _costs(work: Sequence[Action], observed: Observed) -> list[Action]:
    live, facts = observed.deployment, observed.observations.facts
    goes = any(
        isinstance(action, Apply) and _is_deployment(action) and live and _takes_pods(action.manifest, live)
        for action in work
    )
    return list(costs(observed.namespace, observed.observations.pods, removal_values(facts.members))) if goes else []


def as_wanted(desired: Desired, observed: Observed) -> frozenset[str]:
    """Names of the pods that were made from the pool's present template."""
    wanted = {_template(manifest) for manifest in desired.apply if manifest["kind"] == "Deployment"}
    return frozenset(pod.name for pod in observed.observations.pods if pod.template in wanted)


def _of_template(digest: str, observed: Observed) -> frozenset[str]:
    return frozenset(pod.name for pod in observed.observations.pods if digest and pod.template == digest)


def _takes_pods(manifest: Manifest, live: Manifest) -> bool:
    fewer = manifest["spec"].get("replicas", 1) < live["spec"].get("replicas", 1)
    return fewer or _template(manifest) != rollout.digest_of(live)


def _template(deployment: Manifest) -> str:
    return rollout.digest_of(deployment) or rollout.digest_of(rollout.marked(deployment))


def leaving(observed: Observed) -> bool:
    """Whether objects of an earlier pool of this name are still being deleted; until then their names are taken."""
    return any(
        "deletionTimestamp" in child["metadata"] or owner_of(child) not in {None, observed.pool["metadata"]["uid"]}
        for child in observed.children.values()
    )


def foreign(desired: Desired, observed: Observed) -> str:
    """An existing object of a wanted name that the operator did not make, "" where there is none.

    The Secret with keys does not count while it holds the right ones, whoever made it.
    """
    wanted = (*desired.renewed, *desired.apply) if desired.verdict.admitted else ()
    refs = map(Ref.of, wanted)
    return next((f"{ref.kind} {ref.name}" for ref in refs if _is_foreign(observed.children.get(ref))), "")


def _children(desired: Desired, observed: Observed, clock: Clock) -> list[Action]:
    made = [Create(manifest) for manifest in desired.create if Ref.of(manifest) not in observed.children]
    changed = [
        action
        for manifest, edit, wait in _drifted(desired, observed, clock)
        if not wait
        for action in repairs(manifest, observed.children.get(Ref.of(manifest)), edit)
    ]
    return [*_renewals(desired, observed), *made, *changed]


def _drifted(desired: Desired, observed: Observed, clock: Clock) -> Iterator[tuple[Manifest, Edit | None, float]]:
    """Manifests that do not hold, what somebody else edited there, and how long that is left alone, in seconds."""
    for manifest in _to_apply(desired, observed):
        ref, live = Ref.of(manifest), observed.children.get(Ref.of(manifest))
        if (ref, applied(manifest)) in observed.in_vain or (live is not None and is_as_applied(manifest, live)):
            continue
        before = desired.last if desired.last and manifest["kind"] == "Deployment" else manifest
        edit = foreign_edit(before, live) if live is not None else None
        conflict = observed.conflicts.get(ref)
        still = rollout.is_paused(live)
        yield manifest, edit, conflict.wait(edit, clock.time, paused=still) if edit and conflict else 0.0


def _to_apply(desired: Desired, observed: Observed) -> Sequence[Manifest]:
    if desired.verdict.admitted:
        return desired.apply
    return [each for each in desired.held if not _is_foreign(observed.children.get(Ref.of(each)))]


def _renewals(desired: Desired, observed: Observed) -> list[Action]:
    """First of all: what else is refused must not let a certificate run out."""
    return [Replace(each) for each in desired.renewed if not _is_foreign(observed.children.get(Ref.of(each)))]


def is_as_applied(manifest: Manifest, live: Manifest) -> bool:
    """Whether a live object says what its manifest does, its digest too, and no more."""
    return holds(manifest, live) and next(additions(manifest, live), None) is None


def repairs(manifest: Manifest, live: Manifest | None, edit: Edit | None) -> list[Action]:
    """An apply leaves alone what others manage, and is refused where that contradicts it: it is taken away before."""
    if live is None or (parts := without_additions(manifest, live)) is None:
        return [Apply(manifest, edit)]
    about = {name: live["metadata"][name] for name in ("name", "namespace", "resourceVersion")}
    kind = {name: manifest[name] for name in ("apiVersion", "kind")}
    return [Rewrite({**kind, "metadata": about, **parts}, edit), Apply(manifest, edit)]


def _is_deployment(action: Action) -> bool:
    return isinstance(action, Apply) and action.manifest["kind"] == "Deployment"


def owner_of(child: Manifest) -> str | None:
    """The uid of the pool that owns an object, None where none does."""
    owners = child["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner["kind"] == KIND and owner.get("controller")), None)


def _is_foreign(child: Manifest | None) -> bool:
    return child is not None and owner_of(child) is None and not names.is_ours(child)


def _status_manifest(metadata: Mapping[str, Any], wanted: Manifest) -> Manifest:
    # With the version it was read at: a status about a pool that has changed meanwhile is refused.
    about = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion")}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": about, "status": wanted}
