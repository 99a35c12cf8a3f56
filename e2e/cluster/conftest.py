"""One control plane for a test session, a namespace for each test."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from e2e.cluster import rights
from e2e.cluster.bench import Bench
from e2e.cluster.binaries import Binaries, UnavailableError, find
from e2e.cluster.control_plane import ControlPlane, Identity
from e2e.cluster.kube import Kube

_binaries: list[Binaries | UnavailableError] = []


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is missing before any test's clock runs."""
    wanted = any(item.get_closest_marker("cluster") for item in session.items)
    if wanted and not session.config.option.collectonly and not _binaries:
        try:
            _binaries.append(find())
        except UnavailableError as problem:
            _binaries.append(problem)


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    found = _binaries[0]
    if isinstance(found, UnavailableError):
        pytest.fail(str(found))
    return found


@pytest.fixture(scope="session")
def cluster(binaries: Binaries) -> Iterator[ControlPlane]:
    """A running control plane with the CRDs installed and everything audited."""
    with ControlPlane(binaries) as running:
        yield running


@pytest.fixture(autouse=True)
async def closed_connections(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """A TLS connection is gone some turns of the loop after it was closed; before, it would warn in another test."""
    yield
    if inspect.iscoroutinefunction(request.function):
        loop: Any = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            while len(loop._selector.get_map()) > 1:  # noqa: ASYNC110  # one socket is the loop's own
                await asyncio.sleep(0.01)
        for _ in range(3):  # what nobody listens to any more is closed in the next turn
            await asyncio.sleep(0)


@pytest.fixture
def controllers(cluster: ControlPlane) -> ControlPlane:
    """The cluster, where kube-controller-manager runs too: for what needs pods, garbage collection or tokens."""
    if cluster.binaries.controller_manager is None:
        pytest.skip("KUBEBUILDER_ASSETS has no kube-controller-manager")
    return cluster


@pytest.fixture(scope="session")
def api(cluster: ControlPlane) -> Iterator[client.ApiClient]:
    """An administrator's client."""
    with config.new_client_from_config(str(cluster.kubeconfig)) as connected:  # type: ignore[no-untyped-call]
        yield connected


@pytest.fixture
def namespace(api: client.ApiClient) -> Iterator[str]:
    """A fresh namespace; its removal is asked for at the end of the test and not waited for."""
    core = client.CoreV1Api(api)
    name = f"test-{uuid.uuid4().hex[:8]}"
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=name)))
    yield name
    core.delete_namespace(name)


@pytest.fixture(scope="session")
def kube(cluster: ControlPlane) -> Kube:
    """Plain requests with an administrator's rights; the operator's role is defined."""
    connected = Kube(cluster)
    rights.define(connected)
    return connected


@pytest.fixture
def bench(controllers: ControlPlane, kube: Kube, namespace: str, tmp_path: Path) -> Iterator[Bench]:
    """A namespace with a place for operators in it; whatever still runs at the end is killed."""
    with ExitStack() as stack:
        made = Bench(controllers, kube, namespace, Identity(f"operator-{namespace}"), tmp_path, stack)
        rights.grant(kube, made.identity, namespace)
        yield made
