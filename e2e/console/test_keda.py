"""Real KEDA, by the chart's ScaledObject and a real Prometheus, has a pool go from no worker to two and back.

A real API server holds the pool; its own controller of HorizontalPodAutoscalers asks KEDA's adapter, and our operator
makes the pods. They are stood in for as in ``test_autoscaling``: a pod that is there is an engine that is listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from bench.parts import POOL, Running
from e2e.cluster import kubelet, rights
from e2e.cluster.api_server import Identity
from e2e.cluster.bench import Bench
from e2e.cluster.binaries import KEDA, ensured, find
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.keda import keda
from e2e.cluster.kube import Kube, until
from e2e.cluster.test_operator_lifecycle import pods
from e2e.console.prometheus import Prometheus, Target, prometheus
from e2e.console.test_autoscaling import IDLE_SECONDS, Pods, ask, at_zero, scaled_object, scraped
from tests.docs.test_autoscaler_queries import adapter_queries

pytestmark = [pytest.mark.console, pytest.mark.slow, pytest.mark.timeout(3600)]

NAMESPACE, _, NAME = POOL.partition("/")
CLIENTS: Final = 16
"""Twice of what a worker has room for."""
SCALE_SECONDS: Final = 300
"""KEDA looks each fifteen seconds, and so does the controller of its HorizontalPodAutoscaler."""


@contextmanager
def cluster_with_keda(folder: Path, scraper: Prometheus) -> Iterator[Bench]:
    """A pool without workers, our operator, KEDA and its ScaledObject."""
    ensured(KEDA)
    with ExitStack() as stack:
        cluster = stack.enter_context(ControlPlane(find(), audit=False))
        kube = stack.enter_context(closing(Kube(cluster)))
        rights.define(kube)
        bench = Bench(cluster, kube, NAMESPACE, Identity("operator"), folder, stack)
        rights.grant(kube, bench.identity)
        bench.operator()
        bench.create(NAME, replicas=0)
        stack.enter_context(keda(cluster, kube, NAMESPACE, folder))
        kube.create(scaled_object(scraper.url))
        until(lambda: bench.reason("Ready", NAME) == "NoWorkersWanted")
        yield bench


async def follow(bench: Bench, workers: Pods) -> None:
    """Have each pod of the API server be ready, and be one of the workers."""
    while True:
        found = await asyncio.to_thread(pods, bench, NAME)
        for pod in found:
            if pod.get("status", {}).get("phase") != "Running":
                await asyncio.to_thread(kubelet.ready, bench.kube, pod)
        workers.wanted = len(found)
        await asyncio.sleep(0.5)


async def traffic(http: aiohttp.ClientSession, running: Running, workers: Pods) -> list[int]:
    """The statuses of all requests that clients send, one after the other, until there are two workers."""

    async def client(number: int) -> list[int]:
        told = [await ask(http, running, number)]
        while len(workers.listed) < 2:
            told.append(await ask(http, running, number))
        return [*told, await ask(http, running, number)]

    async with asyncio.timeout(SCALE_SECONDS):
        return [status for told in await asyncio.gather(*map(client, range(CLIENTS))) for status in told]


async def test_keda_scales_a_pool_from_zero_to_two_and_back_and_nothing_is_lost(tmp_path: Path) -> None:
    async with at_zero(tmp_path) as (running, workers), aiohttp.ClientSession() as http:
        targets = [Target("controlplane", "controlplane-0", running.internal.removeprefix("http://"))]
        with prometheus(tmp_path, targets, seconds=10) as scraper, ExitStack() as stack:
            await scraped(scraper)
            opened = partial(stack.enter_context, cluster_with_keda(tmp_path, scraper))
            bench = await asyncio.to_thread(opened)
            tasks = [asyncio.create_task(one) for one in (workers.run(), follow(bench, workers))]
            answers = await traffic(http, running, workers)
            assert set(answers) == {200}
            assert len(answers) > 2 * CLIENTS
            assert scraper.now(adapter_queries(POOL)["cachefleet_pool_active"]) > 0, "as an HPA would see it"
            async with asyncio.timeout(IDLE_SECONDS + SCALE_SECONDS):
                while workers.listed:
                    assert not [task for task in tasks if task.done()]
                    await asyncio.sleep(0.5)
            assert workers.history == [0, 1, 2, 0]
            told = adapter_queries(POOL).values()  # the last reading may still have the workers
            await asyncio.to_thread(until, lambda: {scraper.now(query) for query in told} == {0})
            assert await ask(http, running, 99) == 200, "and again from zero"
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(stack.close)
