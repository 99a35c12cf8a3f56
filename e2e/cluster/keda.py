"""KEDA, real, beside a real API server: its operator and its adapter as processes, with certificates of the cluster's.

What a release of it puts into pods, without a webhook and as one user with all rights.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from cachefleet_local.fleet.ports import take_ports
from e2e.cluster.api_server import Identity
from e2e.cluster.binaries import KEDA, ensured, source
from e2e.cluster.certificates import Pair
from e2e.cluster.control_plane import LOOPBACK, ControlPlane
from e2e.cluster.external_metrics import host, registered
from e2e.cluster.kube import Kube
from e2e.cluster.processes import end, spawn

USER: Final = Identity("keda", ("system:masters",))


@contextmanager
def keda(cluster: ControlPlane, kube: Kube, namespace: str, folder: Path) -> Iterator[None]:
    """Within the block KEDA scales what ScaledObjects name; its logs are in ``folder``."""
    programs = ensured(KEDA)
    cluster.install(source(KEDA[0]) / "config/crd/bases")
    ports = take_ports(dict.fromkeys(("facts", "external", "metrics"), 0))
    told = {
        "KUBECONFIG": cluster.kubeconfig_for(USER),
        "POD_NAMESPACE": namespace,
        "KEDA_CLUSTER_OBJECT_NAMESPACE": namespace,
        "WATCH_NAMESPACE": "",
    }
    environment = ["env", *(f"{name}={value}" for name, value in told.items())]
    operator = [programs["operator"], *_operator_flags(cluster, ports, folder)]
    adapter = [programs["adapter"], *_adapter_flags(cluster, ports, folder, namespace)]
    with ExitStack() as stack:
        for name, command in (("keda", operator), ("keda-adapter", adapter)):
            stack.callback(end, spawn([*environment, *command], folder / f"{name}.log"))
        with registered(kube, namespace, ports["external"], cluster.ca):
            yield


def _operator_flags(cluster: ControlPlane, ports: dict[str, int], folder: Path) -> list[str]:
    certificates = _laid_out(
        folder / "keda-certificates", cluster.server_pair("keda-operator", ("localhost",)), cluster.ca
    )
    return [
        f"--cert-dir={certificates}",
        f"--metrics-service-bind-address={LOOPBACK}:{ports['facts']}",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=0",
    ]


def _adapter_flags(cluster: ControlPlane, ports: dict[str, int], folder: Path, namespace: str) -> list[str]:
    serving = cluster.server_pair("keda-adapter", (host(namespace),))
    certificates = _laid_out(folder / "adapter-certificates", cluster.client_pair(USER), cluster.ca)
    kubeconfig = cluster.kubeconfig_for(USER)
    return [
        f"--cert-dir={certificates}",  # with these it asks the operator
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        f"--client-ca-file={cluster.ca}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={ports['external']}",
        f"--port={ports['metrics']}",
        f"--metrics-service-address=localhost:{ports['facts']}",
        *(f"--{name}-kubeconfig={kubeconfig}" for name in ("authentication", "authorization", "lister")),
    ]


def _laid_out(folder: Path, pair: Pair, ca: Path) -> Path:
    """Files as a Secret of certificates has them."""
    folder.mkdir()
    for name, path in (("ca.crt", ca), ("tls.crt", pair.certificate), ("tls.key", pair.key)):
        shutil.copyfile(path, folder / name)
    return folder
