"""kubectl's options of the plugin may stand anywhere before ``--``; what else is typed is a command's own."""

from __future__ import annotations

import pytest

from cachefleet_local.cli.commands.kubectl_plugin import cluster_of
from cachefleet_local.cli.contexts.cluster_access import Cluster


@pytest.mark.parametrize(
    ("typed", "cluster", "rest"),
    [
        ("pools", Cluster(), ["pools"]),
        ("pools -n a -o json", Cluster(namespace="a"), ["pools", "-o", "json"]),
        ("--namespace=a --context k pools -w", Cluster(context="k", namespace="a"), ["pools", "-w"]),
        ("explain --kubeconfig /k d1", Cluster(kubeconfig="/k"), ["explain", "d1"]),
        ("pools --service-account s/a", Cluster(service_account="s/a"), ["pools"]),
        ("explain -- -n", Cluster(), ["explain", "--", "-n"]),
        ("decisions --name-like x --name", Cluster(), ["decisions", "--name-like", "x", "--name"]),
    ],
)
def test_the_cluster_is_taken_out_of_what_is_typed(typed: str, cluster: Cluster, rest: list[str]) -> None:
    assert cluster_of(typed.split()) == (cluster, rest)
