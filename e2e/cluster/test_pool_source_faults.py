"""The control plane's source of pools while the API server is away or says nothing: rows 14 and 15 of the faults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.kubernetes_source import KubePoolSource, WatchBounds
from cachefleet_runtime.kubernetes import KubernetesClient
from e2e.cluster.api_server import ADMIN, ApiServer
from e2e.cluster.test_pool_source import Admin, Watching, admin, eventually, node
from tests.chaos.measurements import measured
from tests.chaos.parts.relay import Relay

__all__ = ["admin", "node"]

pytestmark = pytest.mark.cluster
WATCHES = 2
AWAY_SECONDS = 300


@asynccontextmanager
async def relayed(plane: ApiServer, namespace: str) -> AsyncIterator[tuple[Watching, Relay]]:
    """A source as in an installation, which reaches the API server by a relay of the test's own."""
    host, port = urlsplit(plane.url).hostname, urlsplit(plane.url).port
    assert host is not None
    assert port is not None
    async with Relay(host, port).running() as relay:
        file = plane.kubeconfig_for(ADMIN, server=f"https://127.0.0.1:{relay.port}")
        api, metrics = await KubernetesClient.connect(file), Metrics()
        watching = Watching(
            KubePoolSource(api, metrics=metrics, namespaces=(namespace,), bounds=WatchBounds()), metrics
        )
        task = asyncio.create_task(watching.run())
        try:
            yield watching, relay
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await api.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_while_the_api_server_is_away_all_stays_and_it_is_not_pressed(
    cluster: ApiServer, admin: Admin, namespace: str
) -> None:
    await admin.apply("demo")
    async with relayed(cluster, namespace) as (seen, relay):
        await eventually(lambda: seen.pool(f"{namespace}/demo") is not None)
        with relay.refusing():
            known, before = len(seen.pictures), relay.connections
            await admin.apply("other")
            await admin.delete("demo")
            await asyncio.sleep(AWAY_SECONDS)  # so long it is away
            rate = (relay.connections - before) / AWAY_SECONDS / WATCHES
            assert len(seen.pictures) == known
            assert seen.source.problem
        began = time.monotonic()
        await eventually(lambda: seen.pool(f"{namespace}/other") is not None and seen.pool(f"{namespace}/demo") is None)
        measured(14, "pools known as they are, after it came back", time.monotonic() - began, at_most=15)
        measured(14, "attempts a second of each watch meanwhile", rate, unit="", at_most=1)


@pytest.mark.slow
async def test_a_watch_that_is_half_open_is_given_up(cluster: ApiServer, admin: Admin, namespace: str) -> None:
    """Connections stay, and nothing comes: a change made meanwhile is known once somebody answers again."""
    await admin.apply("demo")
    async with relayed(cluster, namespace) as (seen, relay):
        await eventually(lambda: seen.pool(f"{namespace}/demo") is not None)
        await asyncio.sleep(1)  # the watches are open by then
        began, before = time.monotonic(), relay.connections
        with relay.silent():
            await admin.delete("demo")
            await admin.apply("other")
            while relay.connections == before:  # noqa: ASYNC110 - of another part
                await asyncio.sleep(0.05)
            measured(15, "a silent watch given up", time.monotonic() - began, at_most=30)
            assert seen.pool(f"{namespace}/demo") is not None
        began = time.monotonic()
        await eventually(lambda: seen.pool(f"{namespace}/other") is not None and seen.pool(f"{namespace}/demo") is None)
        measured(15, "all listed again", time.monotonic() - began, at_most=30)
