"""Weights in images, as the API server takes or drops them."""

from __future__ import annotations

import pytest

from e2e.cluster.bench import Bench
from e2e.cluster.kube import Kube, until

pytestmark = pytest.mark.cluster

SINCE = 35
"""The minor version of Kubernetes from which on volumes of images are on by default."""
DIGEST = "sha256:" + 64 * "a"
WEIGHTS = {
    "source": f"oci://registry.example:5000/acme/tiny:1@{DIGEST}",
    "subPath": "models/tiny",
    "adapters": [{"name": "sql", "source": "oci://registry.example:5000/acme/sql:2"}],
}


def minor(kube: Kube) -> int:
    return int(kube.request("GET", "version")["minor"].rstrip("+"))


def test_pods_are_made_of_images_or_the_pool_says_why_none_can_be(bench: Bench) -> None:
    bench.operator()
    bench.create(model=WEIGHTS)
    if minor(bench.kube) < SINCE:
        until(lambda: bench.reason("ConfigValid") == "ImageVolumesUnsupported")
        assert bench.child("Deployment") is None
        bench.edit(model={"source": "org/tiny", "subPath": "", "adapters": []})
    bench.settled()
    deployment = bench.child("Deployment")
    assert deployment is not None
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    images = [volume["image"] for volume in volumes if "image" in volume]
    named = (
        []
        if minor(bench.kube) < SINCE
        else [f"registry.example:5000/acme/tiny:1@{DIGEST}", "registry.example:5000/acme/sql:2"]
    )
    assert images == [{"reference": one, "pullPolicy": "IfNotPresent"} for one in named]


def test_an_edit_to_an_image_that_cannot_be_leaves_what_runs(bench: Bench) -> None:
    bench.operator()
    bench.create()
    bench.settled()
    before = bench.child("Deployment")
    bench.edit(model=WEIGHTS)
    if minor(bench.kube) >= SINCE:
        bench.settled()
        assert bench.reason("ConfigValid") == "Valid"
        return
    until(lambda: bench.reason("ConfigValid") == "ImageVolumesUnsupported")
    after = bench.child("Deployment")
    assert before is not None
    assert after is not None
    assert after["spec"] == before["spec"]
