"""A real Kubernetes control plane in seconds: etcd, kube-apiserver and kube-controller-manager on free ports.

No kubelet and no scheduler: Deployments make ReplicaSets and Pods, owners are garbage-collected, tokens and admission
are the real ones, but pods never run. Everything lives in one folder and in processes that die with this one.
"""

from __future__ import annotations

import datetime as dt
import http.client
import ipaddress
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast

from cachefleet_local.fleet.ports import take_ports
from e2e.cluster import audit
from e2e.cluster.api_server import ADMIN, ApiServer, Identity, StartError
from e2e.cluster.binaries import Binaries
from e2e.cluster.certificates import Authority, Pair
from e2e.cluster.processes import end, spawn

LOOPBACK = "127.0.0.1"
START_SECONDS = 60.0
ATTEMPTS = 3
AUTOSCALER_SECONDS = 3.0
"""Between two looks of the controller at HorizontalPodAutoscalers, in place of Kubernetes' fifteen."""
CRDS = Path(__file__).parents[2] / "crds"

# What a cluster without nodes has use for; the rest only costs start time.
CONTROLLERS = (
    "deployment-controller",
    "disruption-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "horizontal-pod-autoscaler-controller",
    "namespace-controller",
    "replicaset-controller",
    "resourceclaim-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
)
FRONT_PROXY = "front-proxy-client"
_SERVICE_HOSTS = ("127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass
class ControlPlane(ApiServer):
    """Use as a context manager. With ``audit`` on, ``requests()`` gives what the API server was asked so far."""

    binaries: Binaries
    audit: bool = True
    crds: Path | None = CRDS
    controllers: bool = True
    address: str = LOOPBACK  # a node's pods reach any other
    services: tuple[str, ...] = ("10.96.0.0/16",)  # a range of each IP family, the cluster's own first
    with_node: bool = False
    _processes: dict[str, subprocess.Popen[bytes]] = field(init=False, default_factory=dict)
    _accounts: Pair = field(init=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """From nothing to ready. Another process may take a free port between its choice and its use: try again."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._start()
            except StartError:
                self.stop()
                if attempt == ATTEMPTS:
                    raise
            except BaseException:  # an interrupt leaves nothing behind either
                self.stop()
                raise
            else:
                return

    def stop(self) -> None:
        """End all processes and remove the folder."""
        for name in reversed(tuple(self._processes)):
            end(self._processes.pop(name))
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Stop a part's process for a while: it keeps its connections and answers nothing."""
        process = self._processes[name]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def restart_api_server(self) -> None:
        """Stop it and start it anew: it remembers nothing of what was watched."""
        old = self._processes["kube-apiserver"]
        end(old)
        self._spawn("kube-apiserver", cast("list[object]", old.args))
        self._wait(lambda: self._answers("/readyz"), "kube-apiserver")

    def install(self, manifests: Path) -> None:
        """Create the CRDs in a folder and wait until they are served."""
        kube = self.kubectl()
        files = [argument for path in sorted(manifests.glob("*.yaml")) for argument in ("-f", path)]
        if not files:
            raise StartError(f"no CRD in {manifests}: run `make crds`")
        _run([*kube, "apply", "--server-side", *files])
        # Asked again where it fails: kubectl takes a CRD whose conditions are not written yet for a broken one.
        established = [*kube, "wait", "--for=condition=Established", "--timeout=5s", *files]
        self._wait(lambda: _ran(established).returncode == 0, "kube-apiserver")

    def _start(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="cachefleet-cluster-"))
        authority = Authority.made(folder, dt.datetime.now(dt.UTC))
        ports = take_ports({"etcd": 0, "etcd peers": 0, "apiserver": 0})
        host = f"[{self.address}]" if ":" in self.address else self.address
        self.reach(f"https://{host}:{ports['apiserver']}", folder, authority, own=folder)
        self._accounts = authority.key("service-accounts")
        self._spawn("etcd", self._etcd(ports["etcd"], ports["etcd peers"]))
        self._spawn("kube-apiserver", self._apiserver(ports["etcd"], ports["apiserver"]))
        self._wait(lambda: self._answers("/readyz"), "kube-apiserver")
        if self.crds is not None and self.crds.exists():
            # Before the controllers, whose garbage collector looks for new kinds only each half minute.
            self.install(self.crds)
        if self.controllers and self.binaries.controller_manager is not None:
            self._spawn("kube-controller-manager", self._controller_manager(self.binaries.controller_manager))
            # Pods are refused until a namespace's default account is there: the controllers' first deed.
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            self._wait(lambda: self._answers(account), "kube-controller-manager")

    def _etcd(self, client: int, peer: int) -> list[object]:
        return [
            self.binaries.etcd,
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
            "--log-level=error",
        ]

    def _apiserver(self, etcd: int, port: int) -> list[object]:
        own = tuple(str(ipaddress.ip_network(each)[1]) for each in self.services)
        serving = self.server_pair("kube-apiserver", (*_SERVICE_HOSTS, *own, self.address))
        return [
            self.binaries.apiserver,
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            f"--bind-address={self.address}",
            f"--secure-port={port}",
            f"--cert-dir={self.folder}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self._authority.certificate}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self._accounts.certificate}",
            f"--service-account-signing-key-file={self._accounts.key}",
            f"--service-cluster-ip-range={','.join(self.services)}",
            "--allow-privileged",
            "--shutdown-delay-duration=0s",
            *(audit.flags(self.folder) if self.audit else ()),
            *self._aggregation_flags(),
            *self._node_flags(),
        ]

    def _aggregation_flags(self) -> list[str]:
        """For APIs that others answer behind this server: they learn from its certificate who asks."""
        pair = self.client_pair(Identity(FRONT_PROXY))
        return [
            f"--proxy-client-cert-file={pair.certificate}",
            f"--proxy-client-key-file={pair.key}",
            f"--requestheader-client-ca-file={self._authority.certificate}",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        ]

    def _node_flags(self) -> list[str]:
        if not self.with_node:
            return []
        pair = self.client_pair(Identity("kube-apiserver-kubelet-client", ("system:masters",)))
        return [
            f"--advertise-address={self.address}",
            f"--kubelet-client-certificate={pair.certificate}",
            f"--kubelet-client-key={pair.key}",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _controller_manager(self, binary: Path) -> list[object]:
        kubeconfig = self.kubeconfig_for(Identity("system:kube-controller-manager"))
        return [
            binary,
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            f"--service-account-private-key-file={self._accounts.key}",
            f"--root-ca-file={self._authority.certificate}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            f"--horizontal-pod-autoscaler-sync-period={AUTOSCALER_SECONDS:.0f}s",
            f"--flex-volume-plugin-dir={self.folder / 'volume-plugins'}",  # it makes the folder
            f"--controllers={'*' if self.with_node else ','.join(CONTROLLERS)}",
        ]

    def _spawn(self, name: str, command: list[object]) -> None:
        self._processes[name] = spawn(command, self.folder / f"{name}.log")

    def _answers(self, path: str) -> bool:
        admin = self.client_pair(ADMIN)
        context = ssl.create_default_context(cafile=str(self._authority.certificate))
        context.load_cert_chain(admin.certificate, admin.key)
        try:
            with urllib.request.urlopen(f"{self.url}{path}", context=context, timeout=5):  # noqa: S310  # our own https address
                return True
        except (OSError, http.client.HTTPException):
            return False

    def _wait(self, ready: Callable[[], bool], name: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            for part, process in self._processes.items():
                if process.poll() is not None:
                    raise StartError(f"{part} ended with {process.returncode}:\n{self.tail(part)}")
            if time.monotonic() > deadline:
                raise StartError(f"{name} was not ready within {START_SECONDS:.0f} s:\n{self.tail(name)}")
            time.sleep(0.05)

    def tail(self, name: str, lines: int = 20) -> str:
        """The last lines of a part's log."""
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])


def _ran(command: list[object]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


def _run(command: list[object]) -> None:
    done = _ran(command)
    if done.returncode:
        raise StartError(done.stderr or done.stdout)
