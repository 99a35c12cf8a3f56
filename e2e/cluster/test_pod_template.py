"""What a pool takes out of its pods, by each way in which a manifest comes to the API server."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from e2e.cluster.bench import Bench
from e2e.cluster.kube import until

pytestmark = pytest.mark.cluster

REMOVED = {"remove": ["/spec/securityContext/fsGroup", "/spec/containers/engine/livenessProbe"]}
SERVER_SIDE = ("apply", "--server-side", "--force-conflicts")


def kubectl(bench: Bench, *words: str, template: dict[str, Any]) -> None:
    if bench.cluster.binaries.kubectl is None:
        pytest.skip("KUBEBUILDER_ASSETS has no kubectl")
    text = json.dumps(bench.pool(podTemplate=template))
    command = [*map(str, bench.cluster.kubectl()), *words, "-f", "-"]
    until(lambda: _done(command, text))


def _done(command: list[str], text: str) -> bool:
    """False where the operator wrote the status between kubectl's reading and its writing."""
    result = subprocess.run(command, input=text, text=True, check=False, capture_output=True)
    if "the object has been modified" in result.stderr:
        return False
    assert result.returncode == 0, result.stderr
    return True


def made(bench: Bench) -> tuple[bool, bool]:
    """Whether the pods have each of what is removed."""
    deployment = bench.child("Deployment")
    if deployment is None:
        return (False, False)
    spec = deployment["spec"]["template"]["spec"]
    return "fsGroup" in spec["securityContext"], "livenessProbe" in spec["containers"][0]


@pytest.mark.parametrize(
    ("first", "then"),
    [(("apply",), ("apply",)), (("create",), ("replace",)), (SERVER_SIDE, SERVER_SIDE), (("apply",), SERVER_SIDE)],
    ids=["apply", "create", "server-side", "both"],
)
def test_what_is_removed_stays_removed_until_the_pool_says_otherwise(
    bench: Bench, first: tuple[str, ...], then: tuple[str, ...]
) -> None:
    bench.operator()
    kubectl(bench, *first, template=REMOVED)
    until(lambda: bench.child("Deployment") is not None)
    assert made(bench) == (False, False)
    kubectl(bench, *then, template={})
    until(lambda: made(bench) == (True, True))
    kubectl(bench, *then, template=REMOVED)
    until(lambda: made(bench) == (False, False))
    kubectl(bench, *then, template={"remove": REMOVED["remove"][:1]})
    until(lambda: made(bench) == (False, True))


def test_a_null_does_not_survive_an_apply_over_what_was_applied(bench: Bench) -> None:
    """Why there is ``remove``."""
    bench.operator()
    kubectl(bench, "apply", template={})
    until(lambda: made(bench) == (True, True))
    kubectl(bench, "apply", template={"spec": {"securityContext": {"fsGroup": None}}})
    live = bench.kube.read("PrefixCachePool", bench.namespace, "demo")
    assert "fsGroup" not in live["spec"]["podTemplate"].get("spec", {}).get("securityContext", {})
    assert made(bench) == (True, True)
