"""An operator whose credentials end: it says so, lets go of the Lease, and goes on by itself once they are good."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from e2e.cluster import rights
from e2e.cluster.accounts import Account
from e2e.cluster.bench import Bench
from e2e.cluster.kube import until
from e2e.cluster.operator_process import OperatorProcess
from e2e.cluster.proxy import WriteProxy

pytestmark = pytest.mark.cluster

LEASE = {"lease_seconds": 12, "renew_seconds": 6, "stop_seconds": 5, "retry_seconds": 0.2, "resync_seconds": 3600}
FAILING = 'cachefleet_operator_lease_failing_seconds{reason="Unauthorized"}'
RECOVERY_SECONDS = 60.0
"""The promise."""


@pytest.mark.timeout(300)
def test_lost_credentials_are_told_and_edits_carried_out_once_they_are_good(bench: Bench, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the files of a service account are mounted as root alone")
    account = Account.made(bench.cluster, bench.kube, bench.namespace, tmp_path / "account")
    rights.grant(bench.kube, account.identity, bench.namespace)
    first, second = (bench.operator(account=account, **LEASE) for _ in range(2))
    bench.create()
    bench.settled()
    account.replace(bench.kube)
    for operator in (first, second):
        until(partial(_tells, operator))
        assert operator.probe("/healthz") == (200, "ok"), "a restart would bring no other token"
        assert not operator.leads
    said = (bench.folder / "operator.log").read_text()
    assert "the API server does not take this pod's token" in said
    assert said.count("the Lease could not be renewed or taken: 401") <= 6, "once a minute, and not at each try"
    bench.edit(replicas=3)
    account.renew(bench.kube)
    until(partial(_has, bench, 3), seconds=RECOVERY_SECONDS)
    for operator in (first, second):
        until(lambda operator=operator: operator.probe("/readyz") == (200, "ok"))  # type: ignore[misc]  # bound here
        assert operator.metric(FAILING) == 0


def test_a_leader_refused_for_a_moment_goes_on_watching(bench: Bench) -> None:
    """By the same credentials, and without having lost the Lease: nobody else would tell it of an edit."""
    with WriteProxy(bench.cluster, bench.identity) as proxy:
        operator = bench.operator(server=proxy.url, resync_seconds=3600)
        bench.create()
        bench.settled()
        with proxy.unauthorized():
            until(lambda: any("watch=true" in each for each in proxy.refused))
        bench.edit(replicas=3)
        until(partial(_has, bench, 3))
        bench.kube.delete("Service", bench.namespace, "demo-workers")
        until(partial(bench.child, "Service"))
        assert operator.leads
        operator.kill()


def _tells(operator: OperatorProcess) -> bool:
    status, words = operator.probe("/readyz")
    return status == 503 and "401 Unauthorized" in words and operator.metric(FAILING) > 0


def _has(bench: Bench, replicas: int) -> bool:
    return bool(bench.kube.read("Deployment", bench.namespace, "demo-workers")["spec"]["replicas"] == replicas)
