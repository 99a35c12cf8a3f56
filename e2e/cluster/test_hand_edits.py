"""Every object of a pool, each field with a meaning edited by hand: put right as it was, by the operator alone."""

from __future__ import annotations

from functools import partial
from itertools import chain, zip_longest
from typing import Any, Final

import pytest

from cachefleet_operator.reconcile.field_conflicts import AT_ONCE
from e2e.cluster.bench import CHILDREN, Bench
from e2e.cluster.kube import Object, Refused, path, until
from tests.operator.hand_edits import ADDITIONS, CHANGES, HandEdit

pytestmark = pytest.mark.cluster

REFUSED: Final = {
    "Deployment spec.selector.matchLabels.extra",
    "Deployment spec.template.spec.containers.engine.env.VLLM_PLUGINS.valueFrom",
    "Deployment spec.template.spec.initContainers.agent.env.CACHEFLEET_RANKS.valueFrom",
    "PodDisruptionBudget spec.minAvailable",
    "Service spec.type",
}
"""Nobody can: the API server does not take them."""
LASTING: Final = "ConfigMap immutable"


@pytest.mark.timeout(600)
def test_each_edit_by_hand_is_undone(bench: Bench) -> None:
    """Of each pool a few of each object: more in a row are those of another writer, and undone less often. One at a
    time of each pool, of all pools at once.
    """
    bench.operator()
    edits = {f"demo-{number}": each for number, each in enumerate(_shared_out())}
    for name in edits:
        bench.create(name)
    wanted = {name: _settled(bench, name) for name in edits}
    refused = set()
    for step in zip_longest(*edits.values()):
        at_once = {name: edit for name, edit in zip(edits, step, strict=True) if edit}
        taken = {name: edit for name, edit in at_once.items() if _edit(bench, edit, name)}
        refused |= {str(edit) for name, edit in at_once.items() if name not in taken}
        for name, edit in taken.items():
            until(partial(_undone, bench, edit, wanted[name][edit.kind], name), every=0.05)
    assert {bench.conditions(name)["ConfigValid"]["status"] for name in edits} == {"True"}
    assert refused == REFUSED


def test_what_replaces_a_field_that_excludes_it_is_undone(bench: Bench) -> None:
    """An apply alone would be refused for saying both."""
    bench.operator()
    bench.create()
    bench.settled()
    change = {"spec": {"maxUnavailable": None, "minAvailable": 1}}
    bench.kube.patch("PodDisruptionBudget", bench.namespace, "demo-workers", change)
    until(lambda: "minAvailable" not in (bench.child("PodDisruptionBudget") or {})["spec"])
    until(lambda: (bench.child("PodDisruptionBudget") or {})["spec"].get("maxUnavailable") == 1)


def test_what_nobody_can_undo_is_told(bench: Bench) -> None:
    bench.operator()
    bench.create()
    bench.settled()
    bench.kube.patch("ConfigMap", bench.namespace, "demo-policy", {"immutable": True})
    until(lambda: bench.reason("ConfigValid") == "Refused")
    assert "immutable" in bench.conditions()["ConfigValid"]["message"]
    bench.kube.delete("ConfigMap", bench.namespace, "demo-policy")
    until(lambda: bench.reason("ConfigValid") == "Valid")
    assert bench.child("ConfigMap") is not None


def test_what_is_not_ours_stays(bench: Bench) -> None:
    operator = bench.operator(resync_seconds=1)
    bench.create()
    bench.settled()
    after = until(partial(_with_a_sidecar, bench))
    done = 'cachefleet_operator_reconciles_total{outcome="done"}'
    looked = operator.metric(done)
    until(lambda: operator.metric(done) >= looked + 3)
    assert bench.kube.read("Deployment", bench.namespace, "demo-workers")["spec"] == after["spec"]


def _with_a_sidecar(bench: Bench) -> Object | None:
    """The Deployment as the API server has taken it; None where it has changed meanwhile."""
    live = bench.kube.read("Deployment", bench.namespace, "demo-workers")
    live["spec"]["template"]["spec"]["containers"].append({"name": "sidecar", "image": "proxy"})
    live["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "now"
    try:
        return bench.kube.request("PUT", path("Deployment", bench.namespace, "demo-workers"), live)
    except Refused as refused:
        if refused.status == 409:
            return None
        raise


def _shared_out() -> list[list[HandEdit]]:
    """All edits, in groups of which none has more than are undone at once of one object."""
    edits = [each for each in (*ADDITIONS, *CHANGES) if str(each) != LASTING]
    by_kind = [[each for each in edits if each.kind == kind] for kind in CHILDREN]
    groups = -(-max(map(len, by_kind)) // AT_ONCE)
    ordered = list(chain.from_iterable(by_kind))
    return [ordered[number::groups] for number in range(groups)]


def _settled(bench: Bench, name: str) -> dict[str, Object]:
    """What a pool's objects say once they are made, by kind."""
    bench.settled(name)
    return {kind: _meaning(bench.child(kind, name)) for kind in CHILDREN}


def _edit(bench: Bench, edit: HandEdit, name: str) -> bool:
    """Whether the API server takes it; another look where the object has changed meanwhile."""
    while True:
        live = bench.child(edit.kind, name)
        assert live is not None
        try:
            bench.kube.request("PUT", path(edit.kind, bench.namespace, live["metadata"]["name"]), edit.of(live))
        except Refused as refused:
            if refused.status != 409:
                return False
        else:
            return True


def _undone(bench: Bench, edit: HandEdit, wanted: Object, name: str) -> bool:
    live = _meaning(bench.child(edit.kind, name))
    assert live == wanted, edit
    return True


def _meaning(child: Object | None) -> dict[str, Any]:
    """But for the pause of a Deployment, which comes with undoing the third edit of its pods."""
    assert child is not None
    said = {name: value for name, value in child.items() if name not in ("metadata", "status")}
    if "spec" in said:
        said["spec"] = {name: value for name, value in said["spec"].items() if name != "paused"}
    return {**said, "labels": child["metadata"]["labels"]}
