"""The harness itself: what the other cluster tests take for granted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from kubernetes import client

from e2e.cluster.api_server import ApiServer
from e2e.cluster.binaries import Binaries
from e2e.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.cluster


def test_serves_the_pinned_version(api: client.ApiClient) -> None:
    assert client.VersionApi(api).get_code().git_version.startswith("v1.")


def test_knows_pools(api: client.ApiClient) -> None:
    pools: Any = client.CustomObjectsApi(api).list_cluster_custom_object(
        "cachefleet.io", "v1alpha1", "prefixcachepools"
    )
    assert pools["kind"] == "PrefixCachePoolList"


def test_tells_what_it_was_asked(api: client.ApiClient, cluster: ApiServer, namespace: str) -> None:
    client.CoreV1Api(api).read_namespace(namespace)
    asked = [
        (request["verb"], request["objectRef"].get("name"))
        for request in cluster.requests(namespace)
        if "objectRef" in request
    ]
    assert ("get", namespace) in asked


def test_issues_tokens_that_review_accepts(api: client.ApiClient, controllers: ApiServer, namespace: str) -> None:
    core = client.CoreV1Api(api)
    account = client.V1ServiceAccount(metadata=client.V1ObjectMeta(name="worker"))
    core.create_namespaced_service_account(namespace, account)
    request = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=["cachefleet"]))
    issued: Any = core.create_namespaced_service_account_token("worker", namespace, request)
    spec = client.V1TokenReviewSpec(token=issued.status.token, audiences=["cachefleet"])
    review: Any = client.AuthenticationV1Api(api).create_token_review(client.V1TokenReview(spec=spec))
    assert review.status.authenticated
    assert review.status.user.username == f"system:serviceaccount:{namespace}:worker"


def test_leaves_nothing_behind(binaries: Binaries) -> None:
    plane = ControlPlane(binaries, crds=None, controllers=False)
    with plane:
        processes = [process.pid for process in plane._processes.values()]
        assert plane.folder.exists()
    assert not plane.folder.exists()
    assert not any(_alive(pid) for pid in processes)


def test_dies_with_its_owner(binaries: Binaries) -> None:
    script = (
        "from e2e.cluster.binaries import find; from e2e.cluster.control_plane import ControlPlane; import time\n"
        "plane = ControlPlane(find(), crds=None, controllers=False); plane.start()\n"
        "print(*(p.pid for p in plane._processes.values()), plane.folder, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        *pids, folder = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while any(_alive(int(pid)) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    subprocess.run(["rm", "-r", folder], check=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123  # a zombie waits for its reaper: dead to us
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
