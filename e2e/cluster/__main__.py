"""A control plane to try things on: starts, installs the CRDs, says how to use it, stays until Ctrl-C."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from e2e.cluster.api_server import StartError
from e2e.cluster.attended import published, wait_for_signal
from e2e.cluster.binaries import UnavailableError, find
from e2e.cluster.control_plane import ControlPlane

KUBECONFIG = Path(".cachefleet") / "cluster.kubeconfig"


def main() -> int:
    started = time.monotonic()
    try:
        binaries = find()
        with ControlPlane(binaries) as cluster, published(cluster.kubeconfig, KUBECONFIG):
            _explain(cluster, time.monotonic() - started)
            wait_for_signal()
    except (UnavailableError, StartError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _explain(cluster: ControlPlane, seconds: float) -> None:
    kubectl = cluster.binaries.kubectl or "kubectl"
    print(f"""
A Kubernetes control plane is ready after {seconds:.1f} s at {cluster.url}
There is no node: objects are real, pods never run.

  export KUBECONFIG={KUBECONFIG.resolve()}
  alias kubectl={kubectl}
  kubectl explain pcp.spec.prefixCache
  kubectl get pcp -A

Logs and certificates: {cluster.folder}
Ctrl-C stops it and leaves nothing behind.
""")


if __name__ == "__main__":
    sys.exit(main())
