"""Service accounts and their tokens, in the files in which a pod has them."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from e2e.cluster.api_server import ApiServer, Identity
from e2e.cluster.kube import Kube, path

MOUNTED: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NEW_MOUNTS: Final = 0x20000
_BIND: Final = 0x1000
_PRIVATE: Final = 0x40000 | 0x4000  # MS_PRIVATE, MS_REC


@dataclass(frozen=True)
class Account:
    """A service account of a namespace, whose files are in ``folder``."""

    namespace: str
    name: str
    folder: Path
    url: str

    @classmethod
    def made(cls, cluster: ApiServer, kube: Kube, namespace: str, folder: Path) -> Account:
        """A new one, with a token."""
        folder.mkdir()
        (folder / "ca.crt").write_bytes(cluster.ca.read_bytes())
        (folder / "namespace").write_text(namespace)
        account = cls(namespace, "operator", folder, cluster.url)
        account.create(kube)
        account.renew(kube)
        return account

    @property
    def identity(self) -> Identity:
        """Whom the API server takes it for."""
        return Identity(f"system:serviceaccount:{self.namespace}:{self.name}")

    @property
    def environment(self) -> dict[str, str]:
        """What a kubelet tells a container of the API server."""
        address = urlsplit(self.url)
        return {"KUBERNETES_SERVICE_HOST": str(address.hostname), "KUBERNETES_SERVICE_PORT": str(address.port)}

    def create(self, kube: Kube) -> None:
        metadata = {"name": self.name, "namespace": self.namespace}
        kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})

    def replace(self, kube: Kube) -> None:
        """Delete it and make it anew: tokens of before are of another one, and refused."""
        kube.delete("ServiceAccount", self.namespace, self.name)
        self.create(kube)

    def renew(self, kube: Kube) -> None:
        """Write a token, as the kubelet does it: whole or not at all."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        made = kube.request("POST", f"{path('ServiceAccount', self.namespace, self.name)}/token", body)
        draft = self.folder / ".token"
        draft.write_text(made["status"]["token"])
        draft.replace(self.folder / "token")

    def mount(self) -> None:
        """Give this process, and it alone, the files where a container has them. Needs root."""
        libc = ctypes.CDLL(None, use_errno=True)
        _done(libc.unshare(_NEW_MOUNTS))
        _done(libc.mount(b"none", b"/", None, _PRIVATE, None))
        _done(libc.mount(b"tmpfs", os.fsencode(MOUNTED.parents[2].resolve()), b"tmpfs", 0, None))
        MOUNTED.mkdir(parents=True)
        _done(libc.mount(os.fsencode(self.folder), os.fsencode(MOUNTED.resolve()), None, _BIND, None))


def _done(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
