"""A control plane in a Kubernetes cluster, found and reached by kubectl with the rights of kubectl's user.

The connection is a port-forward: through the API server to the pod, with TLS from here to the control plane, whose
certificate is verified by the authority in the cluster. The API server's proxy of services is of no use for it: it
takes the header Authorization out, verifies no certificate, and network policies may not let it in.

The control plane takes tokens of its own audience alone, so that it never sees one that is good for the API server.
Such a token the API server issues for a service account: to whom may create it.
"""

from __future__ import annotations

import atexit
import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import IO, Any, Final

from cachefleet_local.cli_errors import Exit, FailureError
from cachefleet_local.supervise import guard

AUDIENCE: Final = "cachefleet"
SELECTOR: Final = (
    "app.kubernetes.io/part-of=cachefleet,app.kubernetes.io/component=controlplane,cachefleet.io/monitored"
)
"""Of the Service of the internal port."""
AUTHORITY: Final = "cachefleet-ca"
"""The ConfigMap with the authority that control planes are verified by."""
ASK_SECONDS: Final = 20
TOKEN_DURATION: Final = "10m"  # noqa: S105 - the shortest there is
_FORWARDING: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")
_ACCOUNT: Final = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Cluster, namespace and names for kubectl; "" uses kubectl's default, or discovery."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    """Where the control plane is; looked for in all namespaces without."""
    service_account: str = ""
    """NAMESPACE/NAME, whose token is taken; without, kubectl's user has to be one."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A control plane that can be asked."""

    url: str
    token: str = field(repr=False)
    authorities: str


@dataclass(frozen=True, slots=True)
class _Service:
    namespace: str
    name: str
    port: int
    scheme: str


_forwards: list[subprocess.Popen[str]] = []
_readers: list[Thread] = []


def reached(cluster: Cluster, *, url: str | None, with_token: bool) -> Reached:
    """Find the control plane, get a token for it, and have a port forwarded for as long as this process runs.

    With ``url`` nothing is forwarded: it is reached there. FailureError with what to do.
    """
    service = _find_service(cluster)
    token = _token(cluster) if with_token else ""
    authorities = "" if service.scheme == "http" else _authorities(cluster, service)
    return Reached((url or _forwarded(cluster, service)).rstrip("/"), token, authorities)


def _find_service(cluster: Cluster) -> _Service:
    place = [f"--namespace={cluster.namespace}"] if cluster.namespace else ["--all-namespaces"]
    items = json.loads(_kubectl(cluster, "get", "services", "--selector", SELECTOR, "--output=json", *place))["items"]
    services = [_service(item) for item in items]
    if not services:
        where = f"namespace {cluster.namespace}" if cluster.namespace else "any namespace"
        raise FailureError([f"there is no control plane of cachefleet in {where} of the cluster"])
    if len(services) > 1:
        spaces = ", ".join(sorted({one.namespace for one in services}))
        raise FailureError(
            [f"there are several control planes, in {spaces}; choose one with --namespace"], Exit.BAD_INPUT
        )
    return services[0]


def _service(item: Any) -> _Service:
    [port, *_] = [port for port in item["spec"]["ports"] if port["name"] == "internal"] or item["spec"]["ports"]
    metadata = item["metadata"]
    return _Service(metadata["namespace"], metadata["name"], port["port"], port.get("appProtocol", "https"))


def _token(cluster: Cluster) -> str:
    namespace, _, name = (cluster.service_account or _own_account(cluster)).partition("/")
    if not name:
        said = f"--service-account: got {cluster.service_account!r}, allowed: NAMESPACE/NAME"
        raise FailureError([said], Exit.BAD_INPUT)
    wanted = ["create", "token", name, f"--namespace={namespace}", f"--audience={AUDIENCE}"]
    return _kubectl(cluster, *wanted, f"--duration={TOKEN_DURATION}").strip()


def _own_account(cluster: Cluster) -> str:
    user = str(json.loads(_kubectl(cluster, "auth", "whoami", "--output=json"))["status"]["userInfo"]["username"])
    if not user.startswith(_ACCOUNT):
        what = f"the control plane takes no token of {user}, but of service accounts"
        todo = "name one whose tokens you may create with --service-account NAMESPACE/NAME (see docs/cli.md)"
        raise FailureError([f"{what}: {todo}"], Exit.BAD_INPUT)
    return user.removeprefix(_ACCOUNT).replace(":", "/")


def _authorities(cluster: Cluster, service: _Service) -> str:
    asked = ["get", "configmap", AUTHORITY, f"--namespace={service.namespace}", "--output=json"]
    found = str(json.loads(_kubectl(cluster, *asked)).get("data", {}).get("ca.crt", ""))
    if "BEGIN CERTIFICATE" not in found:
        raise FailureError([f"ConfigMap {service.namespace}/{AUTHORITY} has no certificate in ca.crt"])
    return found


def _forwarded(cluster: Cluster, service: _Service) -> str:
    """The address of a local port that leads to the Service; kubectl ends with this process."""
    end_forwards()
    wanted = ["port-forward", f"--namespace={service.namespace}", f"service/{service.name}", f":{service.port}"]
    command = [*_command(cluster), *wanted, "--address=127.0.0.1"]
    process = subprocess.Popen(  # noqa: S603 - words of our own
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        errors="replace",
        text=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - there is one thread
    )
    _forwards.append(process)
    said: list[str] = []
    for line in process.stdout or ():
        if found := _FORWARDING.search(line):
            _read_on(process.stdout)
            return f"{service.scheme}://{_host(service)}:{found[1]}"
        said.append(line.rstrip())
    raise FailureError([f"kubectl port-forward: {line}" for line in said or ["it ended"]])


def _host(service: _Service) -> str:
    """By its name where a certificate is verified, which has that; else what kubectl listens on, and nobody else."""
    return "localhost" if service.scheme == "https" else "127.0.0.1"


def _read_on(stream: IO[str] | None) -> None:
    """Read what kubectl goes on to say, a line for each connection: it would wait for ever where nobody does."""
    _readers.append(Thread(target=lambda: [None for _ in stream or ()], daemon=True))
    _readers[-1].start()


def forwarding() -> bool:
    """Whether a control plane is reached by a port that ends with this process."""
    return bool(_forwards)


def wait_for_forwards() -> None:
    """Wait until whatever forwards a port has ended."""
    for process in _forwards:
        process.wait()


def end_forwards() -> None:
    """End what forwards ports for this process."""
    while _forwards:
        process = _forwards.pop()
        process.terminate()
        process.wait()
        while _readers:
            _readers.pop().join()
        if process.stdout:
            process.stdout.close()


atexit.register(end_forwards)


def _end_with_parent() -> None:
    """Also where this process is killed."""
    if sys.platform.startswith("linux"):
        guard.prctl(guard.SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _kubectl(cluster: Cluster, *words: str) -> str:
    """What kubectl prints; FailureError with what it says where it fails."""
    command = [*_command(cluster), f"--request-timeout={ASK_SECONDS}s", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - words of our own
    except OSError as error:
        raise FailureError([f"kubectl cannot be run ({error.strerror}): a cluster is reached by it"]) from error
    if done.returncode:
        raise FailureError([f"kubectl {' '.join(words[:2])}: {line}" for line in done.stderr.splitlines()])
    return done.stdout


def _command(cluster: Cluster) -> Sequence[str]:
    given = {"--kubeconfig": cluster.kubeconfig, "--context": cluster.context}
    return ["kubectl", *(f"{name}={value}" for name, value in given.items() if value)]
