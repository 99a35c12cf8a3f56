"""The chart as a whole: what it says of itself, and that every combination of values renders to sound objects."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from cachefleet_core.pool.crd import custom_resource_definition
from cachefleet_core.pool.spec import read_pool
from e2e.cluster import binaries
from e2e.cluster.binaries import OLDER
from tests.chart import helm
from tests.chart.helm import CHART, NAMESPACE, Object, Refused, Rendered, template
from tests.chart.matrix import MATRIX

pytestmark = pytest.mark.cluster

ROOT = CHART.parents[1]
ABOUT: Object = yaml.safe_load((CHART / "Chart.yaml").read_text())
NAME = re.compile(r"[a-z0-9]([-a-z0-9.:]*[a-z0-9])?")
CLUSTER_WIDE = {
    *("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
}


def release(values: str) -> Rendered:
    return template(MATRIX[values])


def annotation(name: str) -> Any:
    return yaml.safe_load(ABOUT["annotations"][f"artifacthub.io/{name}"])


def test_helm_finds_nothing_to_complain_of() -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART))


def test_its_version_is_the_product_s() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]

    assert ABOUT["version"] == ABOUT["appVersion"] == version
    assert annotation("images") == [{"name": "cachefleet", "image": f"cachefleet:{version}"}]


def test_what_it_tells_a_hub() -> None:
    assert annotation("license") == "Apache-2.0"
    assert annotation("prerelease") is True
    assert all(set(change) == {"kind", "description"} for change in annotation("changes"))
    assert [crd["name"] for crd in annotation("crds")] == [custom_resource_definition()["metadata"]["name"]]
    for example in annotation("crdsExamples"):
        read_pool(example)


def test_an_older_kubernetes_is_refused() -> None:
    assert next(iter(OLDER)) == "1.31"
    template(kubernetes="1.31.0")
    template(kubernetes="1.31.4-gke.100")
    with pytest.raises(Refused, match=r">=1\.31"):
        template(kubernetes="1.30.9")


def test_another_kubernetes_is_never_that_of_kubebuilder_assets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every version of the matrix is tried on the same programs."""
    for name in ("etcd", "kube-apiserver"):
        (tmp_path / name).touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert binaries.find().apiserver == tmp_path / "kube-apiserver"
    monkeypatch.setattr(binaries, "ensured", lambda programs: {each.name: binaries.cached(each) for each in programs})
    monkeypatch.setenv("CACHEFLEET_KUBERNETES", "1.31")
    assert binaries.find().apiserver.parent.name == f"kubernetes-{OLDER['1.31']}"


def test_a_label_is_given_once_and_the_nearest_wins() -> None:
    near = {"team": "near"}
    objects = template(
        {
            "commonLabels": {"team": "all"},
            "operator": {"podLabels": near},
            "monitoring": {part: {"enabled": True, "labels": near} for part in ("monitors", "rules", "dashboards")},
        }
    )
    pod = objects.one("Deployment", "-operator")["spec"]["template"]["metadata"]["labels"]
    assert pod["team"] == "near"
    for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule"):
        assert {found["metadata"]["labels"]["team"] for found in objects.of(kind)} == {"near"}
    assert objects.one("Deployment", "-operator")["metadata"]["labels"]["team"] == "all"


@pytest.mark.parametrize("values", MATRIX)
def test_every_object_is_named_labelled_and_placed(values: str) -> None:
    objects = release(values)

    identities = Counter((o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects)
    assert [key for key, times in identities.items() if times > 1] == []
    for found in objects:
        metadata = found["metadata"]
        assert NAME.fullmatch(metadata["name"]), metadata["name"]
        assert len(metadata["name"]) <= 63 or found["kind"] in CLUSTER_WIDE
        assert ("namespace" in metadata) is (found["kind"] not in CLUSTER_WIDE)
        if found["kind"] != "CustomResourceDefinition":
            assert metadata["labels"]["app.kubernetes.io/part-of"] == "cachefleet"
            assert metadata["labels"]["app.kubernetes.io/instance"] == "cachefleet"


@pytest.mark.parametrize("values", MATRIX)
def test_selectors_find_the_pods_they_mean(values: str) -> None:
    objects = release(values)
    pods = [o["spec"]["template"]["metadata"]["labels"] for o in objects.of("Deployment")]

    for selector in (o["spec"]["selector"] for o in objects.of("Service")):
        assert sum(selector.items() <= labels.items() for labels in pods) == 1
    for kind in ("Deployment", "PodDisruptionBudget"):
        for found in objects.of(kind):
            selector = found["spec"]["selector"]["matchLabels"]
            assert sum(selector.items() <= labels.items() for labels in pods) == 1


def test_names_follow_the_release() -> None:
    names = {found["metadata"]["name"] for found in template(release="cachefleet").of("Service")}
    assert names == {"cachefleet-gateway", "cachefleet-controlplane", "cachefleet-controlplane-headless"}

    assert {found["metadata"]["name"] for found in template(release="blue").of("Deployment")} == {
        "blue-cachefleet-operator",
        "blue-cachefleet-controlplane",
    }
    assert template({"fullnameOverride": "fleet"}).one("Service", "-gateway")["metadata"]["name"] == "fleet-gateway"


def test_a_long_release_name_leaves_room_for_what_follows() -> None:
    for found in template(release="a" * 53):
        assert len(found["metadata"]["name"]) <= 63 or found["kind"] in CLUSTER_WIDE


def test_two_releases_share_no_cluster_wide_name() -> None:
    def wide(namespace: str) -> set[tuple[str, str]]:
        values = {"crds": {"install": False}, "admissionPolicy": {"enabled": True}}
        objects = template(values, namespace=namespace)
        return {(o["kind"], o["metadata"]["name"]) for o in objects if o["kind"] in CLUSTER_WIDE}

    assert wide("one")
    assert not wide("one") & wide("two")


def test_the_crd_is_ours_and_stays() -> None:
    [crd] = template().of("CustomResourceDefinition")

    assert crd["spec"] == custom_resource_definition()["spec"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_crd_may_go_or_be_somebody_else_s() -> None:
    [crd] = template({"crds": {"keep": False}}).of("CustomResourceDefinition")

    assert crd["metadata"]["annotations"] == {}
    assert template({"crds": {"install": False}}).of("CustomResourceDefinition") == []


def test_values_that_nobody_set_need_no_more_than_this_chart() -> None:
    kinds = {found["apiVersion"] for found in template()}

    assert not any("monitoring" in kind or "cert-manager" in kind or "gateway.networking" in kind for kind in kinds)
    assert {o["metadata"]["namespace"] for o in template() if "namespace" in o["metadata"]} == {NAMESPACE}


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda file: Path(file).name)
def test_examples_fit_the_crd_that_is_installed(file: Path) -> None:
    [crd] = template().of("CustomResourceDefinition")
    served = {(f"{crd['spec']['group']}/{version['name']}") for version in crd["spec"]["versions"] if version["served"]}

    pools = [o for o in yaml.safe_load_all(file.read_text()) if o["kind"] == "PrefixCachePool"]
    for declared in pools:
        assert declared["apiVersion"] in served
        read_pool(declared)
