"""A cluster of one node to try things on: starts it, says how to use it, stays until Ctrl-C, leaves nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from e2e.cluster.api_server import StartError
from e2e.cluster.attended import published, wait_for_signal
from e2e.cluster.binaries import HELM, UnavailableError, ensured
from e2e.node.containerd import ContainerdError
from e2e.node.images import ImageError
from e2e.node.machine import check_machine
from e2e.node.node import Node

KUBECONFIG: Final = Path(".cachefleet") / "node.kubeconfig"


def main() -> int:
    started = time.monotonic()
    try:
        check_machine()
        helm = ensured((HELM,))["helm"]
        with Node() as node, published(node.kubeconfig, KUBECONFIG):
            _explain(node, helm, time.monotonic() - started)
            wait_for_signal()
    except (UnavailableError, StartError, ContainerdError, ImageError, subprocess.CalledProcessError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _explain(node: Node, helm: Path, seconds: float) -> None:
    kubectl = node.cluster.binaries.kubectl
    print(
        f"""
A Kubernetes cluster of one node is ready after {seconds:.0f} s; images are on it.

  export KUBECONFIG={KUBECONFIG.resolve()}
  alias kubectl={kubectl} helm={helm}
  helm install cachefleet charts/cachefleet -n cachefleet-system --create-namespace \\
    --set image.repository={node.images["cachefleet"].repository} --set image.tag=dev
  kubectl apply -f examples/cluster-tiny.yaml
  kubectl wait pcp/tiny --for=condition=Ready --timeout=10m
  kubectl port-forward -n cachefleet-system service/cachefleet-gateway 8080:8080 &
  curl -s --retry 10 --retry-connrefused localhost:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "tiny", "messages": [{{"role": "user", "content": "Hello"}}]}}'
  helm test cachefleet -n cachefleet-system

Logs and certificates: {node.folder}
Ctrl-C stops it and leaves nothing behind but images in the cache.
""",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
