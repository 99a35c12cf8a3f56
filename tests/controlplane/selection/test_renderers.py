"""Which workers are asked to render a prompt, and in what order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_controlplane.workers.worker import Worker
from tests.controlplane.fleet.test_fleet import adapted
from tests.controlplane.fleets import MODEL, LiveFleet, fleet_of, pool, ranked, view
from tests.controlplane.frames import state
from tests.controlplane.selection.calls import counted_calls

NAMES = tuple(f"w{number:03}" for number in range(100))


def names(workers: list[WorkerEndpoint]) -> list[str]:
    return [worker.name for worker in workers]


@given(running=st.lists(st.integers(0, 3), min_size=1, max_size=12), count=st.integers(0, 13), data=st.data())
def test_they_are_the_first_of_all_by_requests_and_name(running: list[int], count: int, data: st.DataObject) -> None:
    fleet = fleet_of(*NAMES[: len(running)])
    links = [fleet.report(name, running=requests) for name, requests in zip(NAMES, running, strict=False)]
    for _ in range(2):
        ordered = [name for _, name in sorted(zip(running, NAMES, strict=False))]
        assert names(fleet.renderers(MODEL)) == ordered
        assert names(fleet.renderers(MODEL, count)) == ordered[:count]
        first = data.draw(st.sampled_from(ordered))
        url = next(worker.url for worker in fleet.renderers(MODEL) if worker.name == first)
        ordered.remove(first)
        assert names(fleet.renderers(MODEL, count, first=url)) == [first, *ordered][:count]
        changed = data.draw(st.integers(0, len(running) - 1))
        running[changed] = data.draw(st.integers(0, 3))
        fleet.receive(links[changed].connection, state(0, running=running[changed]))


def test_an_unknown_url_is_not_among_them() -> None:
    fleet = fleet_of("demo-0", "demo-1")
    assert names(fleet.renderers(MODEL, 1, first="http://elsewhere")) == ["demo-0"]


def test_a_worker_of_several_ranks_is_asked_once() -> None:
    fleet = LiveFleet()
    fleet.update_pools([view(ranked(3), ["demo-0", "demo-1"])])
    for rank in range(3):
        fleet.report("demo-0", rank=rank)
    fleet.report("demo-1", running=5)
    assert names(fleet.renderers(MODEL, 2)) == ["demo-0", "demo-1"]


def test_to_list_them_looks_at_no_worker_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleet_of(*NAMES)
    fleet.renderers(MODEL, 2)
    looked_at = counted_calls(monkeypatch, Worker, "serves")
    assert names(fleet.renderers(MODEL, 2)) == ["w000", "w001"]
    assert not looked_at


def test_requests_for_an_adapter_look_at_no_worker_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = LiveFleet()
    fleet.update_pools([view(pool(model=adapted("sql")), NAMES)])
    fleet.report("w000", served=())
    fleet.renderers("sql", 2)
    looked_at = counted_calls(monkeypatch, Worker, "stand")
    assert names(fleet.renderers("sql", 2)) == ["w001", "w002"]
    assert not looked_at


def test_where_no_worker_may_answer_others_render() -> None:
    transfer = {"image": "vllm", "blockSize": 16, "maxModelLen": 4096, "kvTransfer": {"kv_connector": "x"}}
    fleet, prefill = LiveFleet(), pool("p", role="Prefill", engine=transfer)
    fleet.update_pools([view(prefill, ["p-0"])])
    assert names(fleet.renderers(MODEL, 2)) == ["p-0"]
