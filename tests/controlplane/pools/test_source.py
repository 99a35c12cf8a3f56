"""The source that reads two files."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.first_ready_times import FirstReadyTimes
from cachefleet_controlplane.pools.source import MAX_FILE_BYTES, FilePoolSource, PoolView, WorkerEndpoint
from cachefleet_core.pool.model_names import ModelNames, claim_of
from tests.controlplane.frames import hello
from tests.controlplane.pools.kube_server import pool
from tests.controlplane.waiting import until, value

DEMO = {"name": "demo-0", "url": "http://127.0.0.1:9001", "agent": "http://127.0.0.1:9002", "ready": True}


class Files:
    """A pool file and an endpoints file, and a source over them."""

    def __init__(self, folder: Path) -> None:
        self.pools = folder / "pool.yaml"
        self.endpoints = folder / "endpoints.json"
        self.metrics = Metrics()
        self.memory = folder / "data" / "first-ready.json"
        self.now = 1_800_000_000.0
        self.start()

    def start(self) -> None:
        """As a control plane that begins anew."""
        times = FirstReadyTimes(self.memory, clock=lambda: self.now)
        self.source = FilePoolSource(
            self.pools, self.endpoints, metrics=self.metrics, poll_seconds=0.005, first_ready=times
        )

    def owner(self, model: str) -> str:
        """The pool that has a name; each look is a minute after the one before."""
        self.now += 60
        picture = self.source.poll()
        assert picture is not None
        owner = ModelNames(claim_of(view.pool, view.place) for view in picture).owner(model)
        return "" if owner is None else owner.pool

    def declare(self, *names: str) -> None:
        self.write(self.pools, yaml.safe_dump_all([pool(name, "default") for name in names]))

    def reach(self, endpoints: object) -> None:
        self.write(self.endpoints, json.dumps(endpoints))

    @staticmethod
    def write(path: Path, text: str) -> None:
        new = path.with_suffix(".new")
        new.write_text(text)
        new.replace(path)

    def poll(self) -> dict[str, tuple[WorkerEndpoint, ...]] | None:
        picture = self.source.poll()
        return None if picture is None else {view.key: view.workers for view in picture}

    def errors(self, kind: str) -> float:
        return value(self.metrics, "pool_source_errors_total", kind=kind)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_pools_and_their_workers(files: Files) -> None:
    files.declare("demo", "another")
    files.reach({"default/demo": [{"name": "demo-1", "url": "http://127.0.0.1:9003"}, DEMO], "default/none": [DEMO]})
    assert files.poll() == {
        "default/another": (),
        "default/demo": (
            WorkerEndpoint("demo-0", "http://127.0.0.1:9001", ready=True, agent="http://127.0.0.1:9002"),
            WorkerEndpoint("demo-1", "http://127.0.0.1:9003", ready=False),
        ),
    }
    assert files.source.problem == ""


def test_a_file_has_its_pools_in_the_order_of_their_declaration(files: Files) -> None:
    files.declare("demo", "another")
    picture = files.source.poll()
    assert picture is not None
    assert {view.key: view.place for view in picture} == {"default/another": 1, "default/demo": 0}


def test_a_name_is_of_the_pool_that_had_a_ready_worker_first_and_stays_its_own(files: Files) -> None:
    both = [pool("first", "team-a"), pool("second", "team-b")]
    model, ready, away = both[0]["spec"]["model"]["name"], [DEMO], [DEMO | {"ready": False}]
    files.write(files.pools, yaml.safe_dump_all(both))
    files.reach({"team-a/first": away, "team-b/second": away})
    assert files.owner(model) == "team-a/first", "declared first, while nobody ever was ready"
    files.reach({"team-a/first": away, "team-b/second": ready})
    assert files.owner(model) == "team-b/second"
    files.reach({"team-a/first": ready, "team-b/second": ready})
    assert files.owner(model) == "team-b/second"
    files.start()
    files.reach({"team-a/first": ready, "team-b/second": away})
    assert files.owner(model) == "team-b/second", "over a restart, and without a worker"
    files.write(files.pools, yaml.safe_dump_all(both[:1]))
    assert files.owner(model) == "team-a/first"
    files.write(files.pools, yaml.safe_dump_all(both[::-1]))
    assert files.owner(model) == "team-a/first", "who was gone comes last"


def test_what_a_file_says_of_its_pools_itself_holds(files: Files) -> None:
    said = pool("second", "team-b") | {"status": {"firstReadyTime": "2026-01-01T00:00:00Z"}}
    files.write(files.pools, yaml.safe_dump_all([pool("first", "team-a"), said]))
    files.reach({"team-a/first": [DEMO], "team-b/second": [DEMO]})
    assert files.owner(said["spec"]["model"]["name"]) == "team-b/second"


@pytest.mark.parametrize("kept", ["{", "[]", '{"a/b": 1}', "\udcff", "[" * 100_000])
def test_times_that_cannot_be_read_are_made_anew(files: Files, kept: str) -> None:
    files.memory.parent.mkdir()
    files.memory.write_text(kept, errors="surrogateescape")
    files.start()
    files.declare("demo")
    files.reach({"default/demo": [DEMO]})
    assert files.poll()
    assert list(json.loads(files.memory.read_text())) == ["default/demo"]


def test_a_folder_that_takes_no_file_stops_nothing(files: Files) -> None:
    files.memory.parent.write_text("a file")
    files.declare("demo")
    files.reach({"default/demo": [DEMO]})
    assert files.poll()


def test_no_endpoints_file_yet_means_no_workers(files: Files) -> None:
    files.declare("demo")
    assert files.poll() == {"default/demo": ()}
    assert files.source.problem == ""


def test_without_a_pool_file_there_is_no_picture(files: Files) -> None:
    assert files.poll() is None
    assert files.poll() is None
    assert "pool.yaml" in files.source.problem
    assert files.errors("missing") == 1
    files.declare("demo")
    assert files.poll() == {"default/demo": ()}
    assert files.source.problem == ""


@pytest.mark.parametrize("broken", ["kind: PrefixCachePool", "]]", "", "\x00", "- 1"])
def test_a_broken_pool_file_keeps_the_last_good_picture(files: Files, broken: str) -> None:
    files.declare("demo")
    good = files.poll()
    files.write(files.pools, broken)
    assert files.poll() == good
    assert files.poll() == good
    assert files.source.problem
    assert files.errors("invalid") == 1
    files.declare("other")
    assert files.poll() == {"default/other": ()}
    assert files.source.problem == ""


@pytest.mark.parametrize("broken", ["{", "[]", '{"default/demo": {}}', '{"default/demo": [{"name": 1}]}', "\udcff"])
def test_broken_endpoints_keep_the_last_good_ones(files: Files, broken: str) -> None:
    files.declare("demo")
    files.reach({"default/demo": [DEMO]})
    good = files.poll()
    files.endpoints.write_bytes(broken.encode(errors="surrogateescape"))
    assert files.poll() == good
    assert "endpoints.json" in files.source.problem
    assert files.errors("invalid") == 1


def test_files_that_vanish_or_grow_out_of_bounds_keep_the_last_good_picture(files: Files) -> None:
    files.declare("demo")
    files.reach({"default/demo": [DEMO]})
    good = files.poll()
    files.endpoints.unlink()
    files.write(files.pools, " " * (MAX_FILE_BYTES + 1))
    assert files.poll() == good
    assert files.errors("missing") == files.errors("invalid") == 1


def test_a_folder_in_place_of_a_file_is_unreadable(files: Files) -> None:
    files.pools.mkdir()
    assert files.poll() is None
    assert files.errors("unreadable") == 1


def test_the_same_size_and_time_under_another_inode_is_a_change(files: Files) -> None:
    files.declare("demo")
    files.poll()
    stat = files.pools.stat()
    files.declare("demi")
    os.utime(files.pools, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert files.poll() == {"default/demi": ()}


@asynccontextmanager
async def collected(files: Files) -> AsyncIterator[list[tuple[PoolView, ...]]]:
    pictures: list[tuple[PoolView, ...]] = []

    async def collect() -> None:
        async for picture in files.source.watch():
            pictures.append(picture)  # noqa: PERF401 - looked at while it grows

    running = asyncio.create_task(collect())
    yield pictures
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_each_change_is_given_once(files: Files) -> None:
    async with collected(files) as pictures:
        await asyncio.sleep(0.02)
        assert pictures == []
        files.declare("demo")
        await until(lambda: len(pictures) == 1)
        files.declare("demo")  # another file, the same picture
        files.reach({"default/demo": [DEMO]})
        await until(lambda: len(pictures) == 2)
        assert pictures[-1][0].workers[0].name == "demo-0"
    assert value(files.metrics, "pool_source_updates_total") == 2


def with_budget(budget: int, generation: int = 1, *, known: bool = True) -> str:
    item = pool("demo", "default", prefixCache={"budgetMiB": budget})
    item["metadata"]["generation"] = generation
    if not known:
        item["spec"]["model"].pop("kvBytesPerToken", None)
    return str(yaml.safe_dump(item))


def budgets(files: Files) -> list[tuple[int, int, bool]]:
    return [
        (view.pool.metadata.generation, view.pool.spec.prefix_cache.budget_mib, view.admitted)
        for view in files.source.poll() or ()
    ]


def test_a_budget_that_does_not_fit_is_not_put_in_force(files: Files) -> None:
    files.write(files.pools, with_budget(16))
    assert budgets(files) == [(1, 16, True)]
    files.write(files.pools, with_budget(9_999_999, generation=2))
    assert budgets(files) == [(1, 16, True)]
    assert "default/demo: prefixCache.budgetMiB is 9999999 MiB, the KV cache of a device is" in files.source.problem
    assert files.errors("refused") == 1
    files.write(files.pools, with_budget(32, generation=3))
    assert budgets(files) == [(3, 32, True)]
    assert files.source.problem == ""


def test_a_budget_that_never_fitted_is_told_to_no_worker(files: Files) -> None:
    files.write(files.pools, with_budget(9_999_999))
    assert budgets(files) == [(1, 9_999_999, False)]


def test_workers_reports_decide_where_the_pool_does_not_say_what_a_token_takes(files: Files) -> None:
    files.source._announced = lambda _: (hello(pool="default/demo", block_bytes=16 * 1024 * 1024 * 1024),)
    files.write(files.pools, with_budget(16, known=False))
    assert budgets(files) == [(1, 16, False)]
    files.source._announced = lambda _: (hello(pool="default/demo", block_bytes=16 * 1024),)
    files.write(files.pools, with_budget(17, known=False))
    assert budgets(files) == [(1, 17, True)]
