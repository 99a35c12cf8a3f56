"""That keys were made is kept in the cluster: a control plane whose volume was emptied, before a real API server.

It has the rights that the chart gives it, and the ConfigMap that the chart makes.
"""

from __future__ import annotations

import shutil
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from e2e.cluster.api_server import ApiServer, Identity
from e2e.cluster.kube import Kube, Object, until
from e2e.cluster.rights import allowed
from tests.chart import helm
from tests.chart.matrix import MATRIX
from tests.controlplane import waiting
from tests.controlplane.gateway.harness import engine
from tests.controlplane.tenants.test_tenancy import admin, ask, new_tenant
from tests.controlplane.wiring.test_control_plane import BOUNDS, Plane, running
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.cluster

QUICK = replace(BOUNDS, tenants_poll_seconds=0.1)


@dataclass(frozen=True)
class Release:
    """What a chart's release leaves in its namespace for the marker, and a control plane with the chart's rights."""

    kube: Kube
    objects: helm.Rendered
    namespace: str
    kubeconfig: Path
    folder: Path

    def running(self, worker: FakeEngine, *, ready: bool = True) -> AbstractAsyncContextManager[Plane]:
        env = self.objects.container("controlplane")["env"]
        named = next(each["value"] for each in env if each["name"] == "CACHEFLEET_ACCESS_CONFIG_MAP")
        own = {"kubeconfig": self.kubeconfig, "access_config_map": named}
        return running(self.folder, worker, ready=ready, bounds=QUICK, **own)

    def lose_the_volume(self) -> None:
        shutil.rmtree(self.folder / "data")

    @property
    def marker(self) -> Object:
        """What the ConfigMap says."""
        found = self.kube.read("ConfigMap", self.namespace, f"{helm.RELEASE}-access")
        return dict(found.get("data") or {})


@pytest.fixture
def release(cluster: ApiServer, kube: Kube, namespace: str, tmp_path: Path) -> Release:
    objects = helm.template(MATRIX["persistent"], namespace=namespace)
    who = Identity(f"control-plane-{namespace}")
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": who.name}
    kube.create(objects.one("ConfigMap", "-access"))
    kube.create(objects.one("Role", "-controlplane-home"))
    kube.create({**objects.one("RoleBinding", "-controlplane-home"), "subjects": [subject]})
    return Release(kube, objects, namespace, cluster.kubeconfig_for(who), tmp_path)


def granted(release: Release) -> bool:
    who = f"control-plane-{release.namespace}"
    name = f"{helm.RELEASE}-access"
    return allowed(release.kube, who, "", "configmaps", "patch", namespace=release.namespace, name=name)


async def test_a_first_installation_is_open_and_an_emptied_volume_stays_closed(release: Release) -> None:
    until(lambda: granted(release))
    async with engine() as worker:
        async with release.running(worker) as made:
            assert await ask(made) == 200
            assert release.marker == {}
            key = await new_tenant(made, "acme")
            assert release.marker == {"access": "keyed"}
        release.lose_the_volume()
        async with release.running(worker) as made:
            assert [await ask(made), await ask(made, key)] == [503, 503]
            assert await admin(made, "GET", "access") == {"open": False, "reason": "lost"}
            await admin(made, "POST", "access/open")
            assert await ask(made) == 200
            assert release.marker == {}
        release.lose_the_volume()
        async with release.running(worker) as made:
            assert await ask(made) == 200


async def test_without_the_right_to_read_an_empty_volume_opens_nothing(release: Release) -> None:
    until(lambda: granted(release))
    async with engine() as worker:
        async with release.running(worker) as made:
            await new_tenant(made, "acme")
        release.lose_the_volume()
        binding = release.objects.one("RoleBinding", "-controlplane-home")["metadata"]["name"]
        release.kube.delete("RoleBinding", release.namespace, binding)
        until(lambda: not granted(release))
        async with release.running(worker, ready=False) as made:
            tenants = made.plane.tenancy.tenants
            await waiting.until(tenants.informed.is_set)
            assert await ask(made) == 503
            assert (
                f"ConfigMap {release.namespace}/{helm.RELEASE}-access cannot be read: 403 Forbidden" in tenants.problem
            )
