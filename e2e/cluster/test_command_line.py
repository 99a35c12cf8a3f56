"""``kubectl cachefleet`` and contexts of a cluster: real kubectl, API server, tokens and TLS.

No kubelet runs here, so a port-forward has no end: a program in kubectl's place leads to a control plane of this
process, and leaves everything else to kubectl. On a real node the port-forward itself is tried (e2e/node).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from kubernetes import client

from cachefleet_controlplane.internal_auth.token_review import TokenReviewAuthorizer
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.transport.served_tls import ServedTls
from cachefleet_runtime.kubernetes import KubernetesClient
from e2e.cluster import rights
from e2e.cluster.api_server import ApiServer, Identity
from e2e.cluster.kube import Kube
from e2e.cluster.test_token_review import Accounts, reviewer
from tests.controlplane.admin.served_admin import admin_over, listening, mounted
from tests.fakes.secret_volume import SecretVolume, authority, issued

pytestmark = pytest.mark.cluster
__all__ = ["reviewer"]

KUBECTL = """#!/bin/sh
case " $* " in
*" port-forward "*) echo "Forwarding from 127.0.0.1:{port} -> 8081"; echo $$ >> {folder}/forwards; exec sleep 600;;
*) exec {kubectl} "$@";;
esac
"""
PLUGIN = """#!{python}
from cachefleet_local.__main__ import kubectl_main
kubectl_main()
"""


@dataclass
class Person:
    """Somebody with a kubeconfig, at a shell."""

    kubeconfig: Path
    folder: Path
    account: str

    def types(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What a command did."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CACHEFLEET_", "KUBE"))}
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        env = kept | {"PATH": path, "HOME": str(self.folder), "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(words, cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=120)

    def left(self) -> list[str]:
        """Of what forwarded ports, the processes that have not ended with their commands."""
        return [pid for pid in (self.folder / "forwards").read_text().split() if Path("/proc", pid).exists()]

    def asks(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The same of the plugin, as kubectl runs it."""
        return self.types("kubectl", "cachefleet", *words)


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
async def port(cluster: ApiServer, reviewer: Identity, namespace: str, tmp_path: Path) -> AsyncIterator[int]:
    """A control plane with TLS, that has tokens reviewed by the API server."""
    volume = SecretVolume(tmp_path / "tls", issued(authority(), "localhost"))
    shutil.copy(volume.folder / "ca.crt", tmp_path / "ca.crt")
    api = await KubernetesClient.connect(cluster.kubeconfig_for(reviewer))
    with closing(Database(f"sqlite:///{tmp_path / 'x.db'}", timeout_seconds=5)) as database:
        authorizer = TokenReviewAuthorizer(api, metrics=Metrics(), namespaces=(namespace,))
        app = mounted(admin_over(database, authorize=authorizer.admin))
        async with listening(app, tls=ServedTls(volume.folder)) as port:
            yield port
    await api.close()


@pytest.fixture
def person(  # noqa: PLR0917 - fixtures
    cluster: ApiServer,
    controllers: ApiServer,
    api: client.ApiClient,
    kube: Kube,
    namespace: str,
    port: int,
    tmp_path: Path,
) -> Person:
    """May find the control plane, and have a service account's tokens made; the account may look at pools."""
    kubectl, *_ = cluster.kubectl()
    executable(tmp_path / "bin" / "kubectl", KUBECTL.format(port=port, folder=tmp_path, kubectl=kubectl))
    executable(tmp_path / "bin" / "kubectl-cachefleet", PLUGIN.format(python=sys.executable))
    labels = {
        "app.kubernetes.io/part-of": "cachefleet",
        "app.kubernetes.io/component": "controlplane",
        "cachefleet.io/monitored": "true",
    }
    metadata = {"name": "fleet-controlplane", "namespace": namespace, "labels": labels}
    ports = [{"name": "internal", "port": 8081, "targetPort": 8081, "appProtocol": "https"}]
    kube.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports}})
    named = {"name": "cachefleet-ca", "namespace": namespace}
    data = {"ca.crt": (tmp_path / "ca.crt").read_text()}
    kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": data})
    Accounts(api, kube, namespace).allow("list")
    user = Identity(f"person-{namespace}")
    rules = [
        {"apiGroups": [""], "resources": ["services"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "resourceNames": ["cachefleet-ca"]},
        {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"], "resourceNames": ["worker"]},
    ]
    of_rbac = "rbac.authorization.k8s.io"
    role = {"name": "cachefleet-user", "namespace": namespace}
    kube.create({"apiVersion": f"{of_rbac}/v1", "kind": "Role", "metadata": role, "rules": rules})
    kube.create(
        {
            "apiVersion": f"{of_rbac}/v1",
            "kind": "RoleBinding",
            "metadata": role,
            "subjects": [{"kind": "User", "name": user.name, "apiGroup": of_rbac}],
            "roleRef": {"kind": "Role", "name": "cachefleet-user", "apiGroup": of_rbac},
        }
    )
    rights.wait_for_right(kube, user.name, "", "services", "list", namespace=namespace)
    return Person(cluster.kubeconfig_for(user), tmp_path, f"{namespace}/worker")


async def test_the_plugin_of_kubectl_finds_the_control_plane_by_itself(person: Person, namespace: str) -> None:
    place = ("-n", namespace, "--service-account", person.account)
    found = await asyncio.to_thread(person.asks, "pools", *place, "-o", "json")
    assert found.returncode == 0, found.stderr
    assert [pool["key"] for pool in json.loads(found.stdout)] == [
        pool["key"] for pool in json.loads((await asyncio.to_thread(person.asks, *place, "pools", "-o", "json")).stdout)
    ]
    assert person.left() == []


async def test_rights_are_those_of_the_service_account(person: Person, namespace: str) -> None:
    place = ("-n", namespace, "--service-account", person.account)
    refused = await asyncio.to_thread(person.asks, *place, "tenants", "create", "acme")
    assert refused.returncode == 1
    assert "may not create tenants" in refused.stderr


async def test_who_is_no_service_account_is_told_to_name_one(person: Person, namespace: str) -> None:
    refused = await asyncio.to_thread(person.asks, "pools", "-n", namespace)
    assert refused.returncode == 2
    assert f"takes no token of person-{namespace}" in refused.stderr
    assert "--service-account NAMESPACE/NAME" in refused.stderr


async def test_what_the_api_server_refuses_is_told_in_its_words(person: Person, namespace: str) -> None:
    other = await asyncio.to_thread(person.asks, "pools", "-n", namespace, "--service-account", f"{namespace}/other")
    assert other.returncode == 1
    assert "kubectl create token: " in other.stderr
    everywhere = await asyncio.to_thread(person.asks, "pools", "--service-account", person.account)
    assert everywhere.returncode == 1
    assert "forbidden" in everywhere.stderr.lower()


async def test_a_service_account_needs_to_name_nobody(
    person: Person, cluster: ApiServer, kube: Kube, namespace: str
) -> None:
    kube.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "own", "namespace": namespace},
            "subjects": [{"kind": "ServiceAccount", "name": "worker", "namespace": namespace}],
            "roleRef": {"kind": "Role", "name": "cachefleet-user", "apiGroup": "rbac.authorization.k8s.io"},
        }
    )
    user = f"system:serviceaccount:{namespace}:worker"
    rights.wait_for_right(kube, user, "", "services", "list", namespace=namespace)
    token = await asyncio.to_thread(person.types, "kubectl", "create", "token", "worker", "-n", namespace)
    person.kubeconfig = _with_token(cluster, token.stdout.strip(), person.folder)
    found = await asyncio.to_thread(person.asks, "status", "-n", namespace, "-o", "json")
    assert found.stderr == ""
    assert json.loads(found.stdout)["pools"]


async def test_a_context_remembers_the_cluster(person: Person, namespace: str) -> None:
    given = ("--cluster", "--namespace", namespace, "--service-account", person.account)
    python = (sys.executable, "-m", "cachefleet_local")
    assert (await asyncio.to_thread(person.types, *python, "contexts", "set", "prod", *given)).returncode == 0
    found = await asyncio.to_thread(person.types, *python, "workers", "-o", "name")
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == 3
    elsewhere = await asyncio.to_thread(person.types, *python, "workers", "--url", "http://127.0.0.1:1")
    assert elsewhere.returncode == 2


def _with_token(cluster: ApiServer, token: str, folder: Path) -> Path:
    path = folder / "token.kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": cluster.url, "certificate-authority": str(cluster.ca)}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps(document))
    return path
