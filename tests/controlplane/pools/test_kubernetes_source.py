"""The source of pools against a server that lists, watches, forgets and fails."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.kubernetes_source import KubePoolSource, WatchBounds, pause
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_runtime.kubernetes import KubernetesClient, KubernetesError
from tests.controlplane.pools.kube_server import (
    POOLS,
    SLICES,
    KubeServer,
    connected,
    endpoint,
    endpoint_slice,
    kube_server,
    pool,
)
from tests.controlplane.waiting import until, value

QUICK = WatchBounds(
    inactivity_seconds=30, request_seconds=30, first_pause_seconds=0.02, longest_pause_seconds=0.05, page=2
)
Picture = tuple[PoolView, ...]


class Watcher:
    """The pictures a source gave, the last of which counts."""

    def __init__(self, source: KubePoolSource) -> None:
        self.source = source
        self.pictures: list[Picture] = []

    async def run(self) -> None:
        async with aclosing(self.source.watch()) as pictures:  # type: ignore[type-var]  # a generator, seen as an iterator
            async for picture in pictures:
                self.pictures.append(picture)

    @property
    def now(self) -> dict[str, list[str]]:
        last = self.pictures[-1] if self.pictures else ()
        return {view.key: [worker.name for worker in view.workers if worker.ready] for view in last}


@pytest.fixture
async def server() -> AsyncIterator[KubeServer]:
    async with kube_server() as server:
        yield server


@pytest.fixture
async def api(server: KubeServer) -> AsyncIterator[KubernetesClient]:
    async with connected(server) as api:
        yield api


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@asynccontextmanager
async def watching(
    api: KubernetesClient, metrics: Metrics, *, bounds: WatchBounds = QUICK, namespaces: tuple[str, ...] = ()
) -> AsyncIterator[Watcher]:
    watcher = Watcher(KubePoolSource(api, metrics=metrics, namespaces=namespaces, bounds=bounds))
    running = asyncio.create_task(watcher.run())
    try:
        yield watcher
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_whole_picture_comes_first_then_each_change(
    server: KubeServer, api: KubernetesClient, metrics: Metrics
) -> None:
    for name in ("a", "b", "c"):  # more than a page
        await server.put(POOLS, pool(name))
    await server.put(SLICES, endpoint_slice(endpoint("a-workers-1-aaaaa", "10.0.0.1"), pool="a"))
    async with watching(api, metrics) as watcher:
        await until(lambda: bool(watcher.pictures))
        assert watcher.now == {"serving/a": ["a-workers-1-aaaaa"], "serving/b": [], "serving/c": []}
        await server.delete(POOLS, "serving/b")
        await server.put(SLICES, endpoint_slice(endpoint("a-workers-1-aaaaa", "10.0.0.1", ready=False), pool="a"))
        await until(lambda: watcher.now == {"serving/a": [], "serving/c": []})
        await server.put(POOLS, pool("d"))
        await until(lambda: "serving/d" in watcher.now)
        assert len(server.lists) == 3  # two pages of pools, one of slices: the rest was watched
        assert watcher.source.problem == ""


async def test_workers_stay_while_the_slices_of_their_service_are_out_of_sight(
    server: KubeServer, api: KubernetesClient, metrics: Metrics
) -> None:
    """A label taken off the Service is taken off its slices, which ends the watch of them as a deletion does."""
    await server.put(POOLS, pool("a"))
    found = endpoint_slice(endpoint("a-workers-1-aaaaa", "10.0.0.1"), pool="a")
    await server.put(SLICES, found)
    async with watching(api, metrics) as watcher:
        await until(lambda: watcher.now == {"serving/a": ["a-workers-1-aaaaa"]})
        await server.delete(SLICES, "serving/a-workers-x")
        await server.put(POOLS, pool("b"))
        await until(lambda: "serving/b" in watcher.now)
        assert all(picture[0].workers for picture in watcher.pictures)
        await server.put(SLICES, {**found, "endpoints": []})
        await until(lambda: watcher.now == {"serving/a": [], "serving/b": []})


async def test_no_picture_before_everything_is_listed(
    server: KubeServer, api: KubernetesClient, metrics: Metrics
) -> None:
    server.down = 503
    async with watching(api, metrics) as watcher:
        await until(lambda: "503" in watcher.source.problem)
        assert watcher.pictures == []
        server.down = 0
        await until(lambda: watcher.pictures == [()])
        assert watcher.source.problem == ""
    assert value(metrics, "pool_source_errors_total", kind="failing") >= 1


async def test_an_unchanged_picture_is_not_given_again(
    server: KubeServer, api: KubernetesClient, metrics: Metrics
) -> None:
    await server.put(POOLS, pool())
    async with watching(api, metrics) as watcher:
        await until(lambda: bool(watcher.pictures))
        await server.put(POOLS, pool())
        await server.put(POOLS, pool("other"))
        await until(lambda: "serving/other" in watcher.now)
        assert len(watcher.pictures) == 2


async def test_a_watch_that_ended_is_taken_up_where_it_was(
    server: KubeServer, api: KubernetesClient, metrics: Metrics
) -> None:
    server.seconds = 0.05
    async with watching(api, metrics) as watcher:
        await until(lambda: len(server.watches) > 8)
        await server.put(POOLS, pool())
        await until(lambda: "serving/demo" in watcher.now)
        await until(lambda: (POOLS, str(server.version)) in server.watches)
        assert len(server.lists) == 2
    assert value(metrics, "pool_source_errors_total", kind="gone") == 0


@pytest.mark.usefixtures("hurried")
async def test_a_server_that_ends_watches_at_once_is_not_flooded(
    server: KubeServer, api: KubernetesClient, metrics: Metrics
) -> None:
    server.seconds = 0
    bounds = WatchBounds(first_pause_seconds=0.1)
    async with watching(api, metrics, bounds=bounds) as watcher:
        clock = asyncio.get_running_loop().time
        began = clock()
        await until(lambda: bool(watcher.pictures))
        await until(lambda: len(server.watches) >= 40)
        assert len(server.watches) <= 2 * (1 + (clock() - began) / 0.1)  # of two kinds


async def test_after_a_compaction_deletions_are_found_by_listing(
    server: KubeServer, api: KubernetesClient, metrics: Metrics
) -> None:
    await server.put(POOLS, pool("a"))
    await server.put(POOLS, pool("b"))
    async with watching(api, metrics) as watcher:
        await until(lambda: len(watcher.now) == 2)
        del server.objects[POOLS, "serving/a"]  # unseen by the watch
        await server.compact()
        await until(lambda: watcher.now == {"serving/b": []})
    assert value(metrics, "pool_source_errors_total", kind="gone") >= 1


async def test_a_silent_watch_is_given_up_and_everything_listed_again(
    server: KubeServer, api: KubernetesClient, metrics: Metrics
) -> None:
    bounds = WatchBounds(
        inactivity_seconds=0.2, request_seconds=30, first_pause_seconds=0.02, longest_pause_seconds=0.05
    )
    async with watching(api, metrics, bounds=bounds) as watcher:
        await until(lambda: watcher.pictures == [()])
        server.silent = True
        await server.put(POOLS, pool())
        await until(lambda: "serving/demo" in watcher.now)
    assert value(metrics, "pool_source_errors_total", kind="unreachable") >= 1


async def test_the_last_good_picture_stands_while_the_server_is_away(
    server: KubeServer, api: KubernetesClient, metrics: Metrics
) -> None:
    await server.put(POOLS, pool())
    async with watching(api, metrics) as watcher:
        await until(lambda: len(watcher.now) == 1)
        server.down = 500
        await server.compact()
        await until(lambda: bool(watcher.source.problem))
        await server.put(POOLS, pool("other"))
        assert watcher.now == {"serving/demo": []}
        server.down = 0
        await until(lambda: len(watcher.now) == 2)


async def test_an_invalid_object_is_skipped_and_counted_once(
    server: KubeServer, api: KubernetesClient, metrics: Metrics
) -> None:
    await server.put(POOLS, pool("good"))
    await server.put(POOLS, pool("bad", replicas="many"))
    async with watching(api, metrics) as watcher:
        await until(lambda: watcher.now == {"serving/good": []})
        await server.compact()
        lists = len(server.lists)
        await until(lambda: len(server.lists) > lists + 1)
        await server.put(POOLS, pool("last"))
        await until(lambda: "serving/last" in watcher.now)
    assert value(metrics, "pool_source_errors_total", kind="invalid") == 1


async def test_a_pool_that_cannot_be_read_still_claims_its_name(
    server: KubeServer, api: KubernetesClient, metrics: Metrics
) -> None:
    await server.put(POOLS, pool("bad", replicas="many"))
    async with watching(api, metrics) as watcher:
        await until(lambda: watcher.pictures == [()])
        assert [(claim.pool, claim.model) for claim in watcher.source.unread] == [("serving/bad", "tiny")]
        served = pool("bad", replicas="many") | {"status": {"firstReadyTime": "2027-01-01T00:00:00Z"}}
        await server.put(POOLS, served)
        await until(lambda: watcher.pictures == [(), ()])
        assert [claim.first_ready for claim in watcher.source.unread] == ["2027-01-01T00:00:00Z"]
        await server.put(POOLS, pool("bad"))
        await until(lambda: "serving/bad" in watcher.now)
        assert watcher.source.unread == ()


async def test_only_the_namespaces_asked_for_are_watched(
    server: KubeServer, api: KubernetesClient, metrics: Metrics
) -> None:
    for namespace in ("one", "two", "three"):
        await server.put(POOLS, pool("demo", namespace))
    async with watching(api, metrics, namespaces=("one", "three")) as watcher:
        await until(lambda: bool(watcher.pictures))
        assert set(watcher.now) == {"one/demo", "three/demo"}
        await server.put(POOLS, pool("new", "three"))
        await until(lambda: "three/new" in watcher.now)
    assert all("/namespaces/" in path for path in server.lists)


async def test_an_unexpected_error_does_not_end_a_watch(
    server: KubeServer, api: KubernetesClient, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = api.get
    failures = iter([True, False])

    async def get(path: str, query: dict[str, str], *, seconds: float) -> dict[str, object]:
        return {"items": [7]} if next(failures, False) else await real(path, query, seconds=seconds)

    monkeypatch.setattr(api, "get", get)
    async with watching(api, metrics) as watcher:
        await until(lambda: watcher.pictures == [()])
    assert value(metrics, "task_errors_total", task="watch") == 1


async def test_failures_name_the_status_and_the_server_s_own_words(server: KubeServer, api: KubernetesClient) -> None:
    server.down = 403
    with pytest.raises(KubernetesError, match="403 Unknown: told to be down"):
        await api.get("/apis/x", {}, seconds=1)
    with pytest.raises(KubernetesError, match="403 Unknown: told to be down"):
        await anext(api.watch("/apis/x", {}, silence_seconds=1))


async def test_a_server_that_is_not_there_is_no_answer(server: KubeServer, api: KubernetesClient) -> None:
    api._connection.configuration.host = "http://127.0.0.1:1"
    with pytest.raises(KubernetesError, match="NoAnswer") as error:
        await api.post("/apis/x", {}, seconds=1)
    assert error.value.status == 0


def test_pauses_double_to_their_bound_and_are_never_below_a_second() -> None:
    bounds = WatchBounds()
    assert [pause(failures, bounds, 0.0) for failures in range(6)] == [1, 1, 2, 4, 8, 8]
    assert pause(1000, bounds, 1.0) == 12


def test_without_a_cluster_the_client_library_is_not_imported() -> None:
    code = "import sys, cachefleet_controlplane.wiring.control_plane; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
