"""One control plane for a test run and all its processes, a namespace for each test."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from kubernetes import client, config

from e2e.cluster import connections, rights, shared
from e2e.cluster.apart import bench_on
from e2e.cluster.api_server import ApiServer, Identity
from e2e.cluster.bench import Bench
from e2e.cluster.binaries import KSTATUS, Binaries, UnavailableError, ensured, find
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.kube import Kube
from e2e.together import ALONE

_binaries: list[Binaries | UnavailableError] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first: no process works on it when all others are done."""
    items.sort(key=lambda item: not (item.get_closest_marker("cluster") and _is_long(item)))


def _is_long(item: pytest.Item) -> bool:
    """It has a limit of its own, or is of those that one process runs one after another."""
    return bool(item.get_closest_marker("timeout")) or "own" in getattr(item, "fixturenames", ())


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is missing before any test's clock runs."""
    wanted = any(item.get_closest_marker("cluster") for item in session.items)
    if wanted and not session.config.option.collectonly and not _binaries:
        try:
            if any("kstatus" in item.name for item in session.items):
                ensured([KSTATUS])
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
def cluster(binaries: Binaries, request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    """A running control plane with the CRDs installed and everything audited, the same for all processes of a run."""
    with shared.using(_run_folder(request.config), binaries) as found:
        yield found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run ends after what it started."""
    if not _is_worker(session.config):
        shared.ended(_run_folder(session.config))


def _run_folder(config: pytest.Config) -> Path:
    """What all processes of a run have in common."""
    own: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    return own.parent if _is_worker(config) else own


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.fixture(scope="session", params=[ALONE])
def own(binaries: Binaries) -> Iterator[ControlPlane]:
    """A control plane that tests may freeze, restart and look at as a whole; of a run, one process has it."""
    with ControlPlane(binaries) as running, closing(Kube(running)) as connected:
        rights.define(connected)
        yield running


@pytest.fixture(autouse=True)
async def closed_connections(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """A TLS connection is gone some turns of the loop after it was closed; before, it would warn in another test."""
    yield
    if inspect.iscoroutinefunction(request.function):
        await connections.closed()


@pytest.fixture
def controllers(cluster: ApiServer) -> ApiServer:
    """The cluster, where kube-controller-manager runs too: for what needs pods, garbage collection or tokens."""
    if cluster.binaries.controller_manager is None:
        pytest.skip("KUBEBUILDER_ASSETS has no kube-controller-manager")
    return cluster


@pytest.fixture(scope="session")
def api(cluster: ApiServer) -> Iterator[client.ApiClient]:
    """An administrator's client."""
    with config.new_client_from_config(str(cluster.kubeconfig)) as connected:  # type: ignore[no-untyped-call]
        yield connected


@pytest.fixture
def namespace(kube: Kube) -> str:
    """A fresh namespace. It goes with the cluster: to remove one costs the API server a hundred requests."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


@pytest.fixture(scope="session")
def kube(cluster: ApiServer) -> Iterator[Kube]:
    """Plain requests with an administrator's rights; the operator's role is defined."""
    with closing(Kube(cluster)) as connected:
        yield connected


@pytest.fixture
def bench(controllers: ApiServer, kube: Kube, namespace: str, tmp_path: Path) -> Iterator[Bench]:
    """A namespace with a place for operators in it; whatever still runs at the end is killed."""
    with ExitStack() as stack:
        made = Bench(controllers, kube, namespace, Identity(f"operator-{namespace}"), tmp_path, stack)
        rights.grant(kube, made.identity, namespace)
        stack.enter_context(kube.followed(namespace))
        yield made


@pytest.fixture
def lonely(own: ControlPlane, tmp_path: Path) -> Iterator[Bench]:
    """As ``bench``, on the control plane that is for tests that disturb others."""
    if own.binaries.controller_manager is None:
        pytest.skip("KUBEBUILDER_ASSETS has no kube-controller-manager")
    with ExitStack() as stack:
        yield bench_on(own, tmp_path, stack)
