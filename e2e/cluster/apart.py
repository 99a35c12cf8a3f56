"""Tests that freeze or restart an API server, or run an operator for all of it, do so to one that is theirs alone."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from pathlib import Path

from e2e.cluster import rights
from e2e.cluster.api_server import Identity
from e2e.cluster.bench import Bench
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.kube import Kube


def bench_on(cluster: ControlPlane, folder: Path, stack: ExitStack) -> Bench:
    """A namespace there, with an operator's user who may work in all of them."""
    kube = Kube(cluster)
    stack.callback(kube.close)
    name = f"apart-{uuid.uuid4().hex[:8]}"
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    bench = Bench(cluster, kube, name, Identity(f"operator-{name}"), folder, stack)
    rights.grant(kube, bench.identity)
    stack.enter_context(kube.followed(name))
    return bench
