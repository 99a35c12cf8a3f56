"""The release as a whole: its rights, its upgrade and way back, and its end."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
import yaml

from e2e.node.client import Client, failures
from e2e.node.looks import all_up, granted, used
from e2e.node.pools import Pool
from e2e.node.site import CHART, NAMESPACE, RELEASE, Site, until

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]
GROUP: Final = "cachefleet.io"
SELDOM: Final = {
    "/events": {"list"},
    "apps/replicasets": {"list"},
    "apps/replicasets/scale": {"patch"},
    "autoscaling/horizontalpodautoscalers": {"list"},
    "resource.k8s.io/deviceclasses": {"get"},
    "resource.k8s.io/devicetaintrules": {"list"},
    "resource.k8s.io/resourceclaims": {"list"},
    "resource.k8s.io/resourceclaimtemplates": {"create", "delete", "get", "list", "patch"},
    "resource.k8s.io/resourceslices": {"list"},
}
"""Used where a volume is not there, somebody else writes a Deployment, or devices are claimed:
test_rights_granted_are_rights_used of e2e/cluster has all of them."""


@pytest.mark.parametrize("part", ["operator", "controlplane"])
def test_the_rights_that_are_granted_are_those_that_are_used(site: Site, pool: Pool, part: str) -> None:
    """After all that the other tests made them do."""
    if site.requests is None:
        pytest.skip("this cluster's audit log cannot be read")
    pool.ready()
    _have_a_certificate_written_again(site, pool)
    account = f"{RELEASE}-{part}"
    seldom = SELDOM if part == "operator" else {}

    def ordinary(verbs_of: Mapping[str, set[str]]) -> dict[str, set[str]]:
        return {kind: left for kind, verbs in verbs_of.items() if (left := verbs - seldom.get(kind, set()))}

    found = used(site.requests(), f"system:serviceaccount:{NAMESPACE}:{account}")
    assert ordinary(found) == ordinary(granted(site, account))


def test_an_upgrade_and_the_way_back_restart_no_worker(
    site: Site, pool: Pool, client: Client, tmp_path: Path, figures: dict[str, float]
) -> None:
    starts = pool.starts()
    chart = _next_chart(tmp_path)
    with client.traffic(seed=90) as traffic:
        traffic.reach(10)
        started = time.monotonic()
        site.install("--set", "log.level=DEBUG", chart=chart)
        figures["upgrade_seconds"] = time.monotonic() - started
        assert "0.99.0" in site.helm("list", "-n", NAMESPACE)
        traffic.reach(10)
        site.helm("rollback", RELEASE, "-n", NAMESPACE, "--wait", "--timeout", "5m")
        until(lambda: all_up(site, pool.namespace), seconds=600)
        traffic.reach(10)
    assert failures(traffic.results) == []
    pool.ready()
    assert pool.starts() == starts


def test_an_uninstalled_release_leaves_pools_and_nothing_else(site: Site, pool: Pool, client: Client) -> None:
    starts = pool.starts()
    site.helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait")
    site.kubectl("delete", "pod", "-n", NAMESPACE, "cachefleet-test-hit", "--ignore-not-found")
    until(lambda: not site.list("pods", NAMESPACE), seconds=600)
    until(lambda: _only_definitions_are_left(site), seconds=600)
    assert pool.starts() == starts
    assert client.site is site


def test_pools_go_with_all_they_own_when_the_operator_is_gone(site: Site, pool: Pool) -> None:
    site.kubectl("delete", "pcp", "--all", "-A", "--wait=true", "--timeout=300s")
    until(lambda: not _owned(site, pool), seconds=600)
    site.kubectl("delete", "crd", f"prefixcachepools.{GROUP}", "--timeout=300s")
    site.kubectl("delete", "namespace", NAMESPACE, "--timeout=600s")
    everything = site.kubectl("get", _kinds(), "-A", "-l", "app.kubernetes.io/part-of=cachefleet", "-o", "name")
    assert everything.split() == []


def _have_a_certificate_written_again(site: Site, pool: Pool) -> None:
    """Certificates are renewed after months; one without the authorities to trust is at the next look at its pool."""
    name, missing = f"{pool.name}-worker-tls", '[{"op": "remove", "path": "/data/ca.crt"}]'
    site.kubectl("patch", "secret", name, "-n", pool.namespace, "--type=json", "-p", missing)
    site.kubectl("annotate", "pcp", pool.name, "-n", pool.namespace, "--overwrite", f"example.org/looked={time.time()}")
    until(lambda: "ca.crt" in site.get("secret", name, pool.namespace)["data"], seconds=300)


def _only_definitions_are_left(site: Site) -> bool:
    left = site.kubectl("get", _kinds(), "-A", "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name").split()
    assert [name for name in left if not name.startswith("customresourcedefinition")] == []
    return True


def _owned(site: Site, pool: Pool) -> list[str]:
    label = f"cachefleet.io/pool={pool.name}"
    return site.kubectl("get", _kinds(), "-n", pool.namespace, "-l", label, "-o", "name").split()


def _kinds() -> str:
    return ",".join(
        (
            *("deployments", "replicasets", "pods", "services", "endpointslices", "configmaps", "secrets"),
            *("serviceaccounts", "roles", "rolebindings", "clusterroles", "clusterrolebindings", "networkpolicies"),
            *("poddisruptionbudgets", "persistentvolumeclaims", "leases", "customresourcedefinitions"),
        )
    )


def _next_chart(folder: Path) -> Path:
    """The chart as a later version would be."""
    chart = folder / "cachefleet"
    shutil.copytree(CHART, chart)
    document = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump(document | {"version": "0.99.0"}))
    return chart
