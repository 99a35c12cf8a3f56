"""One cluster, one release of the chart, one pool and one client for a test session; tests run in the files' order.

With KUBECONFIG and CACHEFLEET_E2E_IMAGES (a prefix below which ``cachefleet:dev`` and ``vllm-cpu:dev`` are) the
tests use that cluster, which must be empty of ours; else a node is made on this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from cachefleet_local.models.tiny_model import TINY_SOURCE, made_model_path
from e2e.cluster.binaries import HELM, UnavailableError, ensured
from e2e.engine.seeing_model import make_adapter
from e2e.node import pools
from e2e.node.client import Client, running
from e2e.node.families import IPV4, chosen
from e2e.node.images import REPOSITORY, Builder
from e2e.node.machine import check_machine
from e2e.node.node import Node
from e2e.node.prepare import prepare
from e2e.node.registry import Registry, serving
from e2e.node.site import Images, Site
from e2e.node.surroundings import surroundings

RESULTS: Final = Path(__file__).parents[2] / ".results"
WORKLOADS: Final = "serving"
"""The namespace of the pool that tests share."""
_prepared: list[Exception | None] = []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Say what is missing before any test's clock runs; with CACHEFLEET_NODE=optional, skip these tests for it."""
    wanted = [item for item in items if item.get_closest_marker("node")]
    if not wanted or config.option.collectonly or _foreign():
        return
    try:
        check_machine()
    except UnavailableError as problem:
        if os.environ.get("CACHEFLEET_NODE") != "optional":
            pytest.exit(str(problem), returncode=2)
        for item in wanted:
            item.add_marker(pytest.mark.skip(str(problem)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is missing before any test's clock runs; the tests tell of what went wrong."""
    if session.config.option.collectonly or _foreign() or _prepared:
        return
    if any(item.get_closest_marker("node") and not item.get_closest_marker("skip") for item in session.items):
        try:
            prepare()
        except Exception as problem:  # noqa: BLE001  # whatever it is, the fixture that needs it raises it
            _prepared.append(problem)
        else:
            _prepared.append(None)


@pytest.fixture(scope="session")
def figures() -> Iterator[dict[str, float]]:
    """Seconds and shares that tests measured, by name; written to a file and printed at the end."""
    measured: dict[str, float] = {}
    yield measured
    RESULTS.mkdir(exist_ok=True)
    families = "" if chosen() == (IPV4,) else "-".join(("", *(each.name for each in chosen())))
    (RESULTS / f"node{families}.json").write_text(json.dumps(measured, indent=1) + "\n")
    print("\n" + "\n".join(f"  {name}: {value:.2f}" for name, value in measured.items()))


@pytest.fixture(scope="session")
def site(figures: dict[str, float]) -> Iterator[Site]:
    if _foreign():
        yield _given_site()
        return
    if problem := _prepared[0]:
        raise problem
    programs = ensured((HELM,))
    before, started = surroundings(), time.monotonic()
    with Node() as node:
        figures["node_ready_seconds"] = time.monotonic() - started
        kubectl = node.cluster.binaries.kubectl
        assert kubectl is not None
        programs["kubectl"] = kubectl
        with serving() as registry:
            node.reach(registry.address)
            images = Images.below(REPOSITORY)
            own, driver = tuple(family.name for family in chosen()), node.device_driver()
            yield Site(node.kubeconfig, programs, images, node.cluster.requests, registry, own, driver)
    assert surroundings() == before, "the node has left its machine other than it was"


@pytest.fixture(scope="session")
def pool(site: Site, figures: dict[str, float]) -> pools.Pool:
    """The release, just installed, and a pool of two workers that are ready."""
    site.kubectl("create", "namespace", WORKLOADS)
    site.kubectl("label", "namespace", WORKLOADS, "pod-security.kubernetes.io/enforce=restricted")
    started = time.monotonic()
    site.install()
    figures["chart_installed_seconds"] = time.monotonic() - started
    made = pools.Pool(site, WORKLOADS, "tiny")
    made.apply(_weights(site))
    made.ready()
    figures["install_to_ready_seconds"] = time.monotonic() - started
    return made


@pytest.fixture(scope="session")
def client(site: Site, pool: pools.Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """An application beside the pool."""
    with running(site, pool.namespace, tmp_path_factory.mktemp("client")) as made:
        yield made


def _weights(site: Site) -> dict[str, Any]:
    """By an image of a registry that asks for a password, where there is one; else as the example makes them."""
    if site.registry is None:
        return {}
    site.apply(site.registry.pull_secret(WORKLOADS, pools.SECRET))
    with TemporaryDirectory() as folder:
        model, adapter = _built(Path(folder), site.registry)
    site.registry.push_artifact("acme/artifact", "1", b"weights")
    named = {"name": pools.ADAPTER, "source": f"oci://{adapter}", "subPath": pools.ADAPTER}
    return pools.from_image(model) | {"model.adapters": [named]}


def _built(folder: Path, registry: Registry) -> tuple[str, str]:
    """Images of the tiny model and of an adapter of it, built as users build them and pushed; their references."""
    made, builder = folder / "made", Builder()
    builder.weights(made_model_path(TINY_SOURCE), f"/{pools.FOLDER}", made)
    model = registry.push(pools.WEIGHTS, "1", made)
    registry.push("acme/locked", "1", made)
    adapter, pushed = make_adapter(folder / "adapter", seed=1, layers="model.layers"), folder / "pushed"
    builder.weights(adapter, f"/{pools.ADAPTER}", pushed)
    own = registry.push(pools.ADAPTERS, "1", pushed)
    return f"{registry.address}/{pools.WEIGHTS}:1@{model}", f"{registry.address}/{pools.ADAPTERS}@{own}"


def _foreign() -> bool:
    return bool(os.environ.get("KUBECONFIG") and os.environ.get("CACHEFLEET_E2E_IMAGES"))


def _given_site() -> Site:
    programs = {name: Path(path) for name in ("kubectl", "helm") if (path := shutil.which(name))}
    return Site(
        Path(os.environ["KUBECONFIG"]), programs, Images.below(os.environ["CACHEFLEET_E2E_IMAGES"]), requests=None
    )
