"""What runs on a node beside containerd: scheduler, kubelet, kube-proxy and a name server, as command lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from cachefleet_local.fleet.ports import take_ports
from e2e.cluster.certificates import Pair
from e2e.node.families import chosen

NODE: Final = "cachefleet-node"
DOMAIN: Final = "cluster.local"

COREFILE: Final = """
.:53 {
    bind ADDRESSES
    errors
    kubernetes DOMAIN in-addr.arpa ip6.arpa {
        kubeconfig KUBECONFIG
        ttl 1
    }
    cache 1
}
"""


@dataclass(frozen=True, slots=True)
class Pki:
    """Whom a kubelet trusts, and how it shows who it is."""

    authority: Path
    serving: Pair


def addresses() -> tuple[str, ...]:
    """The node's, one of each family."""
    return tuple(family.node for family in chosen())


def kubelet(binary: Path, folder: Path, *, kubeconfig: Path, pki: Pki, socket: Path) -> list[object]:
    """The command line of a kubelet; its configuration is written into ``folder``."""
    flags = {
        "config": _written(folder / "kubelet.yaml", _configuration(folder, pki, socket)),
        "kubeconfig": kubeconfig,
        "hostname-override": NODE,
        "node-ip": ",".join(addresses()),
        "root-dir": root(folder),
        "cert-dir": folder,
    }
    return [binary, *(f"--{name}={value}" for name, value in flags.items())]


def root(folder: Path) -> Path:
    """Where a kubelet has what is of its pods, and the sockets of drivers."""
    return folder / "kubelet"


def _configuration(folder: Path, pki: Pki, socket: Path) -> dict[str, Any]:
    names = folder / "resolv.conf"  # what pods inherit: nothing of this machine
    names.write_text("")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": addresses()[0],
        "port": take_ports({"kubelet": 0})["kubelet"],
        "healthzPort": 0,
        "tlsCertFile": str(pki.serving.certificate),
        "tlsPrivateKeyFile": str(pki.serving.key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki.authority)},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,  # they would stay
        "oomScoreAdj": 0,
        "containerRuntimeEndpoint": f"unix://{socket}",
        "clusterDNS": list(addresses()),
        "clusterDomain": DOMAIN,
        "resolvConf": str(names),
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "volumePluginDir": str(folder / "volume-plugins"),
        "podLogsDir": str(folder / "pod-logs"),
    }


def scheduler(binary: Path, kubeconfig: Path) -> list[object]:
    """The command line of a kube-scheduler that need not share its work."""
    flags = dict.fromkeys(("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"), kubeconfig)
    return [binary, *(f"--{name}={value}" for name, value in flags.items()), "--leader-elect=false", "--secure-port=0"]


def proxy(binary: Path, folder: Path, *, kubeconfig: Path) -> list[object]:
    """The command line of a kube-proxy."""
    ports = take_ports({"health": 0, "metrics": 0})
    configuration: dict[str, Any] = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "hostnameOverride": NODE,
        "healthzBindAddress": f"127.0.0.1:{ports['health']}",
        "metricsBindAddress": f"127.0.0.1:{ports['metrics']}",
        "mode": "iptables",
        "clusterCIDR": ",".join(family.pods for family in chosen()),
        "oomScoreAdj": 0,
        # Not ours to set on this machine.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        # All pods are behind one bridge, which would else carry answers past the rules that translate them.
        "iptables": {"masqueradeAll": True, "minSyncPeriod": "0.1s"},
    }
    return [binary, f"--config={_written(folder / 'kube-proxy.yaml', configuration)}"]


def name_server(binary: Path, folder: Path, *, kubeconfig: Path) -> list[object]:
    """The command line of CoreDNS, which answers at the node's addresses."""
    corefile = folder / "Corefile"
    text = COREFILE.replace("ADDRESSES", " ".join(addresses())).replace("DOMAIN", DOMAIN)
    corefile.write_text(text.replace("KUBECONFIG", str(kubeconfig)))
    return [binary, "-conf", corefile]


def _written(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(document))
    return path
