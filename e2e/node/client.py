"""An application in the cluster: a pod that sends requests to the gateway's Service."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from e2e.cluster.kube import until
from e2e.node.site import NAMESPACE, RELEASE, Object, Site

SCRIPT: Final = Path(__file__).with_name("traffic.py")
POD: Final = "application"
ENDS_IN: Final = 180.0


@dataclass(slots=True)
class Traffic:
    """Requests that are being sent, and what came of those that were answered."""

    process: subprocess.Popen[str]
    log: Path
    results: list[Object] = field(default_factory=list)

    def end(self) -> None:
        """Send no more, and wait for what is under way."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(ENDS_IN)
        self.read()

    def read(self) -> list[Object]:
        """What came so far, oldest first; a line that is being written is none yet."""
        with self.log.open() as lines:
            whole = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        self.results = sorted(whole, key=lambda one: one["at"])
        return self.results

    def reach(self, count: int) -> None:
        """Wait until so many more were answered."""
        wanted = len(self.read()) + count
        until(lambda: len(self.read()) >= wanted, seconds=300)


@dataclass(frozen=True, slots=True)
class Client:
    """The pod; made by ``running``."""

    site: Site
    namespace: str
    folder: Path

    @contextmanager
    def traffic(self, **options: Any) -> Iterator[Traffic]:
        """Requests until the block ends; ``options`` as ``traffic.py`` names them."""
        log = self.folder / f"traffic-{time.monotonic_ns()}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                self._command(options), stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True
            )
            traffic = Traffic(process, log)
            try:
                yield traffic
            finally:
                traffic.end()

    def ask(self, count: int, **options: Any) -> list[Object]:
        """So many requests one after another."""
        with self.traffic(rate=0, **options) as traffic:
            until(lambda: len(traffic.read()) >= count or traffic.process.poll() is not None, seconds=300)
        assert traffic.results, traffic.log.read_text()
        return traffic.results[:count]

    def _command(self, options: dict[str, Any]) -> list[str]:
        asked = {
            "url": f"http://{RELEASE}-gateway.{NAMESPACE}.svc:8080",
            "model": "tiny",
            "rate": 4,
            "seconds": 3600,
            "conversations": 8,
            "tokens": 8,
            "stream": "mixed",
            "seed": 1,
        }
        inside = ["python3", "/client/traffic.py", json.dumps(asked | options)]
        return [*self.site.command("kubectl"), "exec", "-i", "-n", self.namespace, POD, "--", *inside]


@contextmanager
def running(site: Site, namespace: str, folder: Path) -> Iterator[Client]:
    """Start the pod and wait until it runs; ``folder`` takes what its requests came to."""
    site.apply(_script(namespace), _pod(site, namespace))
    try:
        site.kubectl("wait", "--for=condition=Ready", "--timeout=300s", "-n", namespace, f"pod/{POD}")
        yield Client(site, namespace, folder)
    finally:
        site.kubectl("delete", "pod", POD, "-n", namespace, "--grace-period=0", "--force", "--ignore-not-found")


def hit_ratio(results: Sequence[Object]) -> float:
    """Cached prompt tokens of all prompt tokens, over requests that were answered."""
    answered = [one for one in results if not one["error"]]
    prompt, cached = (sum(int(one[name]) for one in answered) for name in ("prompt", "cached"))
    return cached / max(1, prompt)


def failures(results: Sequence[Object]) -> list[Object]:
    """Requests that were not answered."""
    return [one for one in results if one["error"]]


def _script(namespace: str) -> Object:
    metadata = {"name": POD, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {SCRIPT.name: SCRIPT.read_text()}}


def _pod(site: Site, namespace: str) -> Object:
    container = {
        "name": POD,
        "image": site.images.product,
        "command": ["python3", "-c", "import signal; signal.sigwait({signal.SIGTERM})"],
        "volumeMounts": [{"name": "script", "mountPath": "/client"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "script", "configMap": {"name": POD}}],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "namespace": namespace}, "spec": spec}
