"""An API server as who asks it sees it: where it is, who may ask, what it was asked."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import yaml

from e2e.cluster import audit
from e2e.cluster.binaries import Binaries
from e2e.cluster.certificates import Authority, Pair, kubeconfig


class StartError(RuntimeError):
    """A part did not come up; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A user of the cluster, known by a certificate."""

    name: str
    groups: tuple[str, ...] = ()


ADMIN = Identity("cachefleet-test-admin", ("system:masters",))


class ApiServer:
    """``kubeconfig`` is an administrator's; ``kubeconfig_for`` makes others."""

    binaries: Binaries
    url: str = ""
    folder: Path
    kubeconfig: Path

    @classmethod
    def found(cls, binaries: Binaries, url: str, folder: Path, own: Path) -> Self:
        """One that another process runs in ``folder``; certificates for its users are written into ``own``."""
        made = cls()
        made.binaries = binaries
        made.reach(url, folder, Authority.found(folder, own, dt.datetime.now(dt.UTC)), own=own)
        return made

    def reach(self, url: str, folder: Path, authority: Authority, *, own: Path) -> None:
        """Say where it is, and who signs for its users."""
        self.url, self.folder, self._own, self._authority = url, folder, own, authority
        self._pairs: dict[Identity, Pair] = {}
        self.kubeconfig = self.kubeconfig_for(ADMIN)

    def kubeconfig_for(self, identity: Identity, *, server: str | None = None) -> Path:
        """A kubeconfig for a user; ``server`` puts something else (a proxy) in the API server's place."""
        suffix = f"-{urlsplit(server).port}" if server else ""
        path = self._own / f"{identity.name.replace(':', '-')}{suffix}.kubeconfig"
        pair = self.client_pair(identity)
        document = kubeconfig(server or self.url, self._authority.certificate, identity.name, pair)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(yaml.safe_dump(document))
        draft.replace(path)  # another operator of this user may be reading it
        return path

    def client_pair(self, identity: Identity) -> Pair:
        """A certificate and key for a user, always the same: processes may be reading them."""
        if identity not in self._pairs:
            self._pairs[identity] = self._authority.client(identity.name, identity.groups)
        return self._pairs[identity]

    def server_pair(self, name: str, hosts: tuple[str, ...]) -> Pair:
        """A certificate and key for a server that is reached as any of ``hosts``."""
        return self._authority.server(name, hosts)

    @property
    def ca(self) -> Path:
        return self._authority.certificate

    def kubectl(self) -> list[object]:
        """The beginning of a command line; what it learns of this server is not kept for the next one's."""
        cache = f"--cache-dir={self._own / 'kubectl'}"
        return [_require(self.binaries.kubectl, "kubectl"), f"--kubeconfig={self.kubeconfig}", cache]

    def requests(self, *words: str) -> list[dict[str, Any]]:
        """The audit log: one entry for each finished request in which all these words are, oldest first."""
        return audit.requests(self.folder, *words)


def _require(path: Path | None, name: str) -> Path:
    if path is None:
        raise StartError(f"{name} is not in KUBEBUILDER_ASSETS")
    return path
