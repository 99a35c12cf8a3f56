"""InferenceObjectives against a server that lists and watches, and one that has none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.inference_objectives import InferenceObjectives, objective
from cachefleet_controlplane.pools.kubernetes_objects import ObjectError
from cachefleet_controlplane.pools.kubernetes_source import WatchBounds
from cachefleet_runtime.kubernetes import Object
from tests.controlplane.pools.kube_server import KubeServer, connected, kube_server
from tests.controlplane.waiting import until, value

PLURAL = "inferenceobjectives"
QUICK = WatchBounds(first_pause_seconds=0.02, longest_pause_seconds=0.05, page=2)


def item(name: str, priority: Any = 10, *, pool: str = "demo", namespace: str = "serving", **ref: str) -> Object:
    spec = {"poolRef": {"group": "inference.networking.k8s.io", "name": pool, **ref}}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec if priority is None else {**spec, "priority": priority},
    }


@asynccontextmanager
async def following(*items: Object, namespaces: tuple[str, ...] = ()) -> AsyncIterator[tuple[KubeServer, Any, Metrics]]:
    async with kube_server() as server, connected(server) as api:
        for each in items:
            await server.put(PLURAL, each)
        found, metrics = InferenceObjectives(), Metrics()
        work = found.follow(api, metrics=metrics, namespaces=namespaces, bounds=QUICK, missing_seconds=0.05)
        running = asyncio.create_task(work)
        try:
            yield server, found, metrics
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_they_are_read_and_followed() -> None:
    async with following(item("chat"), item("batch", -5), item("plain", None)) as (server, found, _):
        await until(lambda: bool(found))
        told = [found.priority("serving", name, ["demo"]) for name in ("chat", "batch", "plain", "other")]
        assert told == [10, -5, 0, None]
        await server.put(PLURAL, item("chat", 20))
        await until(lambda: found.priority("serving", "chat", ["demo"]) == 20)
        await server.delete(PLURAL, "serving/chat")
        await until(lambda: found.priority("serving", "chat", ["demo"]) is None)


async def test_they_are_of_one_namespace_and_pool() -> None:
    there = (item("chat"), item("service", kind="Service"))
    async with following(*there) as (_, found, _):
        await until(lambda: bool(found))
        assert found.priority("serving", "chat", ["other", "demo"]) == 10
        assert found.priority("serving", "chat", ["other"]) is None
        assert found.priority("batch", "chat", ["demo"]) is None
        assert found.priority("serving", "service", ["demo"]) is None


async def test_of_listed_namespaces_each_is_read() -> None:
    there = (item("a"), item("b", namespace="batch"), item("c", namespace="others"))
    async with following(*there, namespaces=("serving", "batch")) as (server, found, _):
        await until(lambda: found.priority("serving", "a", ["demo"]) and found.priority("batch", "b", ["demo"]))
        assert found.priority("others", "c", ["demo"]) is None
        assert {path.split("/")[5] for path in server.lists} == {"serving", "batch"}


@pytest.mark.parametrize("status", [404, 403, 503])
async def test_where_there_are_none_they_are_looked_for_again_and_no_error_is_counted(status: int) -> None:
    async with kube_server() as server, connected(server) as api:
        server.down = status
        found, metrics = InferenceObjectives(), Metrics()
        running = asyncio.create_task(found.follow(api, metrics=metrics, bounds=QUICK, missing_seconds=0.05))
        try:
            await asyncio.sleep(0.3)
            assert not running.done()
            assert not found
            server.down = 0
            await server.put(PLURAL, item("chat"))
            await until(lambda: found.priority("serving", "chat", ["demo"]) == 10)
            for kind in ("missing", "denied", "failing"):
                assert not value(metrics, "pool_source_errors_total", kind=kind)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("spec", [None, {}, {"poolRef": {}}, {"poolRef": {"name": "a"}, "priority": "high"}])
def test_one_that_says_nothing_is_none(spec: Any) -> None:
    with pytest.raises(ObjectError):
        objective({"metadata": {"name": "a"}, "spec": spec})
