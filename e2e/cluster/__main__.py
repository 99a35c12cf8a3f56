"""A control plane to try things on: starts, installs the CRDs, says how to use it, stays until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

from e2e.cluster.binaries import UnavailableError, find
from e2e.cluster.control_plane import ControlPlane, StartError

KUBECONFIG = Path(".cachefleet") / "cluster.kubeconfig"


def main() -> int:
    started = time.monotonic()
    try:
        binaries = find()
        with ControlPlane(binaries) as cluster:
            _publish(cluster.kubeconfig)
            try:
                _explain(cluster, time.monotonic() - started)
                _wait_for_signal()
            finally:
                KUBECONFIG.unlink(missing_ok=True)
    except (UnavailableError, StartError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _publish(kubeconfig: Path) -> None:
    KUBECONFIG.parent.mkdir(exist_ok=True)
    KUBECONFIG.touch(mode=0o600)
    KUBECONFIG.write_text(kubeconfig.read_text())


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


def _wait_for_signal() -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()


if __name__ == "__main__":
    sys.exit(main())
