"""Autoscalers before a real API server: the pool's scale, and ScaledObjects by KEDA's own schema."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml

from e2e.cluster.bench import Bench
from e2e.cluster.kube import MERGE, Object, Refused, path, until
from e2e.cluster.test_operator_lifecycle import deployment, pods, running
from tests.chart.helm import template

pytestmark = pytest.mark.cluster

KEDA: Final = "github.com/kedacore/keda/v2@v2.21.0"
"""Its module holds the CRDs; Go's module proxy has it."""


def scale(bench: Bench, replicas: int) -> Object:
    """As an autoscaler does it, of the right object."""
    where = f"{path('PrefixCachePool', bench.namespace, 'demo')}/scale"
    return bench.kube.request("PATCH", where, {"spec": {"replicas": replicas}}, form=MERGE)


def test_a_pool_is_scaled_to_zero_and_back_by_its_scale_alone(bench: Bench) -> None:
    bench.operator()
    running(bench)
    told = scale(bench, 0)
    assert told["status"]["selector"]
    until(lambda: deployment(bench)["spec"]["replicas"] == 0)
    until(lambda: bench.reason("Ready") == "NoWorkersWanted")
    until(lambda: not pods(bench))
    scale(bench, 2)
    until(lambda: len(pods(bench)) == 2)
    assert bench.kube.read("PrefixCachePool", bench.namespace, "demo")["spec"]["replicas"] == 2
    assert bench.conditions().get("Degraded", {"status": "False"})["status"] == "False"


@pytest.mark.parametrize("replicas", [-1, 1001])
def test_more_or_fewer_workers_than_there_may_be_are_refused(bench: Bench, replicas: int) -> None:
    bench.create()
    with pytest.raises(Refused, match=r"spec\.replicas"):
        scale(bench, replicas)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "should be greater than or equal to 0"),
        (3601, "should be less than or equal to 3600"),
        ("60", "must be of type integer"),
        (1.5, "must be of type integer"),
    ],
)
def test_a_cold_start_out_of_its_range_is_refused_with_the_range(bench: Bench, seconds: object, words: str) -> None:
    with pytest.raises(Refused) as refused:
        bench.create(admission={"coldStartSeconds": seconds})
    assert "spec.admission.coldStartSeconds" in refused.value.message
    assert words in refused.value.message


@pytest.fixture(scope="session")
def scaled_objects() -> Object:
    """KEDA's definition of ScaledObjects."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go; it fetches KEDA's module")
    done = subprocess.run([go, "mod", "download", "-json", KEDA], capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)
    assert "Dir" in told, told
    text = (Path(told["Dir"]) / "config/crd/bases/keda.sh_scaledobjects.yaml").read_text()
    definition: Object = yaml.safe_load(text)
    return definition


def test_a_scaled_object_of_the_chart_is_one_to_keda(bench: Bench, scaled_objects: Object) -> None:
    with_status = bench.kube.get("CustomResourceDefinition", "", scaled_objects["metadata"]["name"])
    if with_status is None:
        bench.kube.create(scaled_objects)
    where = f"apis/keda.sh/v1alpha1/namespaces/{bench.namespace}/scaledobjects"
    pool = {"namespace": bench.namespace, "name": "demo", "minWorkers": 0, "maxWorkers": 4}
    [told] = template({"autoscaling": {"pools": [pool]}}).of("ScaledObject")
    made = until(lambda: _made(bench, where, told))
    assert made["spec"] == told["spec"], "nothing is unknown, and nothing is filled in"


def _made(bench: Bench, where: str, manifest: Object) -> Object | None:
    try:
        return bench.kube.request("POST", where, manifest, query={"fieldValidation": "Strict"})
    except Refused as refused:
        if refused.status == 404:  # not served yet
            return None
        raise
