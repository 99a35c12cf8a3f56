"""The chart before a real API server: every object is taken, and helm's own round trip leaves nothing."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.api_server import ApiServer
from e2e.cluster.kube import Kube, Object, until
from e2e.cluster.rights import RIGHTS, allowed
from tests.chart import helm
from tests.chart.matrix import MATRIX

pytestmark = pytest.mark.cluster

OPERATORS = {"monitoring.coreos.com/v1"}  # kinds of programs that this chart does not need
RESTRICTED = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
NO_CRD = {"crds": {"install": False}}  # the cluster of these tests has it already, by nobody's release


@pytest.fixture
def places(kube: Kube, namespace: str) -> Mapping[str, str]:
    """Namespaces that stand for those of the values."""
    made = {name: f"{name}-{namespace}" for name in ("serving", "batch")} | {helm.NAMESPACE: namespace}
    for name in made.values():
        if name != namespace:
            kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    kube.patch("Namespace", "", namespace, RESTRICTED)
    return made


def named(namespace: str) -> str:
    """A release there. What is cluster-wide has its name: no two tests have the same."""
    return f"cachefleet-{namespace[-8:]}"


def placed(values: Any, places: Mapping[str, str]) -> Any:
    """The same values, where the namespaces have the test's names."""
    if isinstance(values, dict):
        return {key: placed(value, places) for key, value in values.items()}
    if isinstance(values, list):
        return [placed(value, places) for value in values]
    return places.get(values, values) if isinstance(values, str) else values


def kubectl(cluster: ApiServer, *command: str, given: str = "") -> str:
    """What it wrote, warnings too."""
    program = [str(cluster.binaries.kubectl), "--kubeconfig", str(cluster.kubeconfig), *command]
    done = subprocess.run(program, input=given, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def bound_pods(objects: helm.Rendered) -> list[Object]:
    """The pods that Deployments would make, as objects of their own."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": found["metadata"]["name"], "namespace": found["metadata"]["namespace"]},
            "spec": {**found["spec"]["template"]["spec"], "serviceAccountName": "default", "priorityClassName": ""},
        }
        for found in objects.of("Deployment")
    ]


# A restricted namespace asks for a seccomp profile, which a cluster that chooses identities sets by itself:
# test_a_cluster_that_chooses_users tries that.
@pytest.mark.parametrize("values", [name for name in MATRIX if name != "left to the cluster"])
def test_the_api_server_takes_every_object(
    values: str, cluster: ApiServer, kube: Kube, places: Mapping[str, str]
) -> None:
    objects = helm.template(
        placed(MATRIX[values], places), release=named(places[helm.NAMESPACE]), namespace=places[helm.NAMESPACE]
    )
    until(lambda: kube.get("ServiceAccount", places[helm.NAMESPACE], "default"))
    mine = [found for found in objects if found["apiVersion"] not in OPERATORS]

    text = yaml.safe_dump_all([*mine, *bound_pods(objects)])
    said = kubectl(cluster, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", given=text)

    # Another test applies the CRD by the client, which this way then offers to take over.
    assert not [line for line in said.splitlines() if "Warning" in line and "last-applied" not in line]
    assert len(re.findall(r"serverside-applied", said)) == len(mine) + len(objects.of("Deployment"))


class Helm:
    """helm in the cluster of the tests."""

    def __init__(self, cluster: ApiServer, namespace: str, folder: Path) -> None:
        self._options = ["--namespace", namespace, "--kubeconfig", str(cluster.kubeconfig)]
        self._environment = {**os.environ, "HOME": str(folder)}

    def __call__(self, *command: str, values: Any = None) -> str:
        chart = [str(helm.CHART), "--values", "-"] if values is not None else []
        program = [helm.program(), *command, *chart, *self._options]
        done = subprocess.run(
            program,
            input=yaml.safe_dump(values),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=self._environment,
        )
        if done.returncode:
            raise helm.Refused(done.stderr)
        return done.stdout


def owned(cluster: ApiServer, release: str) -> set[str]:
    """Everything of a release, of whatever kind; slices of endpoints without the end of their names, which is drawn."""
    kinds = set(kubectl(cluster, "api-resources", "--verbs=list", "-o", "name").split())
    wanted = ",".join(sorted(kinds - {"componentstatuses", "endpoints", "events", "events.events.k8s.io"}))
    selector = f"app.kubernetes.io/instance={release}"
    found = kubectl(cluster, "get", wanted, "-A", "-l", selector, "-o", "name", "--ignore-not-found").split()
    return {name.rpartition("-")[0] if name.startswith("endpointslice") else name for name in found}


def lasting(names: set[str]) -> set[str]:
    """Those that are the same in every life of a release."""
    return {name for name in names if not name.startswith(("pod/", "replicaset"))}


def sliced(names: set[str]) -> int:
    """How many Services have their slice of endpoints."""
    return len([name for name in names if name.startswith("endpointslice")])


def test_installed_upgraded_rolled_back_and_removed(
    controllers: ApiServer, kube: Kube, namespace: str, tmp_path: Path
) -> None:
    run, release = Helm(controllers, namespace, tmp_path), named(namespace)
    smaller = {**NO_CRD, "controlPlane": {"replicas": 1}, "networkPolicy": {"enabled": False}}

    assert f"{release}-gateway" in run("install", release, values=NO_CRD)
    until(lambda: sliced(owned(controllers, release)) == 3)
    before = lasting(owned(controllers, release))
    run("upgrade", release, values=smaller)
    assert not [name for name in owned(controllers, release) if name.startswith("networkpolicy")]
    run("rollback", release, "1")
    assert lasting(owned(controllers, release)) == before
    run("uninstall", release)

    until(lambda: not owned(controllers, release))
    assert kube.get("CustomResourceDefinition", "", "prefixcachepools.cachefleet.io") is not None


def pools_of(notes: str) -> list[Object]:
    """The pool that is pasted into a shell, with each line of variables that it may have."""
    [text] = re.findall(r"<<EOF\n(.*?)\n *EOF", notes, re.DOTALL)
    lines = re.findall(r"engine='(.*?)' device='(.*?)' budget=(\d+)$", notes, re.MULTILINE)
    variables = [dict(zip(("$engine", "$device", "$budget"), line, strict=True)) for line in lines]
    assert len(variables) == 2
    return [yaml.safe_load(reduce(lambda given, one: given.replace(*one), each.items(), text)) for each in variables]


@pytest.mark.parametrize("values", ["defaults", "single", "persistent", "database", "namespaced"])
def test_notes_name_what_comes_next(
    values: str, cluster: ApiServer, kube: Kube, places: Mapping[str, str], tmp_path: Path
) -> None:
    run, release = Helm(cluster, places[helm.NAMESPACE], tmp_path), named(places[helm.NAMESPACE])
    wanted = {**placed(MATRIX[values], places), **NO_CRD}

    notes = run("install", release, "--dry-run=server", values=wanted)

    for pool in pools_of(notes):
        pool["metadata"]["namespace"] = places["serving"]
        kube.create(pool, dry_run=True)
    assert f"service/{release}-gateway" in notes
    assert ("NOTE: " in notes) is (values not in {"database", "persistent"})


def test_in_listed_namespaces_rights_end_there(
    controllers: ApiServer, kube: Kube, places: Mapping[str, str], tmp_path: Path
) -> None:
    home = places[helm.NAMESPACE]
    run, release = Helm(controllers, home, tmp_path), named(home)
    run("install", release, values={**placed(MATRIX["namespaced"], places), **NO_CRD})
    operator = f"system:serviceaccount:{home}:{release}-operator"
    reviewer = f"system:serviceaccount:{home}:{release}-controlplane"

    def may(account: str, namespace: str, group: str, resource: str, verb: str) -> bool:
        return allowed(kube, account, group, resource, verb, namespace=namespace)

    try:
        for known in (  # something of each binding that is asked about
            (operator, home, "coordination.k8s.io", "leases", "get"),
            (operator, places["serving"], "cachefleet.io", "prefixcachepools", "list"),
            (reviewer, "", "authentication.k8s.io", "tokenreviews", "create"),
            (reviewer, places["batch"], "cachefleet.io", "prefixcachepools", "watch"),
        ):
            until(partial(may, *known))
        for (group, resource), verbs in RIGHTS.items():
            where = home if resource == "leases" else places["serving"]
            for verb in verbs:
                granted = resource not in {
                    "deviceclasses",
                    "devicetaintrules",
                    "resourceslices",
                }  # of the whole cluster
                assert may(operator, where, group, resource, verb) == granted, (resource, verb)
                assert not may(operator, "default", group, resource, verb), (resource, verb)
        assert may(reviewer, "", "authentication.k8s.io", "tokenreviews", "create")
        assert may(reviewer, places["batch"], "cachefleet.io", "prefixcachepools", "watch")
        assert not may(reviewer, "default", "cachefleet.io", "prefixcachepools", "watch")
    finally:
        run("uninstall", release)


def test_a_crd_that_is_there_already_is_taken_over_when_asked_and_stays(
    controllers: ApiServer, kube: Kube, namespace: str, tmp_path: Path
) -> None:
    run, release = Helm(controllers, namespace, tmp_path), named(namespace)

    with pytest.raises(helm.Refused, match="invalid ownership metadata"):
        run("install", release, values={})
    run("install", release, "--take-ownership", values={})
    run("uninstall", release)
    assert kube.get("CustomResourceDefinition", "", "prefixcachepools.cachefleet.io") is not None
    run("install", release, values={})  # the same release again needs nobody's leave
    run("uninstall", release)
