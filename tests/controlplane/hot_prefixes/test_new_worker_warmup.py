"""A new worker is told of what is hot, once, behind what its pool wants; and holds it before its first request."""

from __future__ import annotations

import base64
import json
import math
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from cachefleet_controlplane.cache_contracts.contract_report import ContractState
from cachefleet_controlplane.hot_prefixes import leaving_workers
from cachefleet_controlplane.hot_prefixes.hot_prefix import HotBounds, Line
from cachefleet_controlplane.hot_prefixes.new_worker_warmup import NewWorkerWarmUp, budget_tokens
from cachefleet_controlplane.hot_prefixes.tracker import HotPrefixes
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.hit_rule import HitRule
from cachefleet_core.report_frames import Drain, Hello, Phase, State, Warm, decode_down, encode
from cachefleet_core.tenancy import DEFAULT_TENANT, TenantId, tenant_salt
from cachefleet_core.warmth import Warmth
from cachefleet_worker.agent.agent import Agent
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.wiring import running as running_agent
from tests.controlplane.fleets import LiveFleet, pool, view
from tests.controlplane.frames import hello, state
from tests.controlplane.gateway.harness import FLEET_KEY, INDEX_KEY, POOL, SALT, WORKER_KEY, engine
from tests.controlplane.waiting import until, value
from tests.controlplane.wiring.test_control_plane import POOL_FILE, Plane, running
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.usefixtures("hurried")

BLOCK = 16
TOKENS = 10 * BLOCK
PREFIX = {"name": "p", "messages": [{"role": "system", "content": "x"}], "tenants": ["acme"]}
HELLO: Hello = hello("demo-1", block_bytes=1024 * 1024, blocks_total=100)


class Fleet:
    """One pool and what is hot in it."""

    def __init__(
        self, *, tokens: int = TOKENS, seconds: float = 60, contracts: tuple[dict[str, Any], ...] = (), **cache: Any
    ) -> None:
        declared = pool(prefixCache=cache, tenancy={"contracts": list(contracts)})
        self.fleet = LiveFleet()
        self.fleet.update_pools([view(declared, ["demo-0", "demo-1"])])
        self.hot = HotPrefixes(HotBounds())
        self.metrics = Metrics()
        self.new_workers = NewWorkerWarmUp(
            self.hot, self.fleet, self.metrics, tokens=tokens, seconds=seconds, clock=lambda: 0.0
        )

    def heat(
        self,
        *first: int,
        times: int = 2,
        contract: str = HELLO.contract.fingerprint(),
        salt: str = "s",
        tenant: str = "acme",
    ) -> None:
        ids = [number for number in first for _ in range(BLOCK)]
        line = Line("default/tiny", contract, TenantId(tenant), salt)
        keys = BlockKeyer(b"k" * 32, Namespace(contract, salt), BLOCK).packed_keys(ids)
        for _ in range(times):
            wanted = self.hot.note(line, keys, 0.0)
            if wanted is not None:
                self.hot.learn(wanted.key, array("I", ids).tobytes())

    def told(self, told: State | None = None, said: Hello = HELLO) -> list[tuple[str, str, set[int]]]:
        """Names, salts and numbers of the prefixes that a worker is told of."""
        warm = self.new_workers.reported(said, state(0, held=0, digest=0) if told is None else told)
        if warm is None:
            return []
        assert decode_down(encode(warm)) == warm
        assert isinstance(warm, Warm)
        assert not warm.standing
        return [(one.name, one.salt, set(array("I", one.ids))) for one in warm.prefixes]


def test_a_new_worker_is_told_once_hottest_first() -> None:
    fleet = Fleet()
    fleet.heat(1, 2)
    fleet.heat(3, times=5)
    assert fleet.told() == [("hot-0", "s", {3}), ("hot-1", "s", {1, 2})]
    assert fleet.told() == []
    assert fleet.told(said=hello("demo-1", epoch="e2")) != []
    assert value(fleet.metrics, "hot_warmed_workers_total") == 2
    assert value(fleet.metrics, "hot_warmed_prefixes_total") == 4


def test_where_windows_count_a_prefix_is_told_with_a_token_after_its_last_block() -> None:
    """Of a prompt an engine keeps the window before its last token."""
    fleet = Fleet()
    fleet.heat(1, 2)
    said = replace(HELLO, rule=HitRule(windows=(2,)))
    warm = fleet.new_workers.reported(said, state(0, held=0, digest=0))
    assert warm is not None
    assert list(array("I", warm.prefixes[0].ids)) == [*[1] * BLOCK, *[2] * BLOCK, 2]


def test_a_worker_that_held_something_when_it_was_first_heard_of_is_not_new() -> None:
    fleet = Fleet()
    fleet.heat(1)
    assert fleet.told(state(0, held=3)) == []
    assert fleet.told(state(0, held=0)) == []


def test_the_pools_own_prefixes_come_first() -> None:
    fleet = Fleet(warmPrefixes=[PREFIX])
    fleet.heat(1)
    assert fleet.told(state(0, held=0, phase=Phase.STARTING)) == []
    assert fleet.told(state(0, held=0, phase=Phase.WARMING)) == []  # it has not heard of them
    # It knows what stands, and is still out of traffic for that: what is hot comes behind it.
    assert fleet.told(state(0, held=0, phase=Phase.WARMING, warmth=Warmth(total=2))) == [("hot-0", "s", {1})]


@pytest.mark.parametrize("cache", [{"enabled": False}, {"budgetMiB": 0}])
def test_nobody_is_told_where_nothing_is_kept(cache: dict[str, Any]) -> None:
    fleet = Fleet(**cache)
    fleet.heat(1)
    assert fleet.told() == []


def test_other_contracts_have_other_prefixes() -> None:
    fleet = Fleet()
    fleet.heat(1, contract="other")
    assert fleet.told() == []


def test_what_is_told_keeps_within_the_budget_and_the_bound() -> None:
    for bounded in (Fleet(budgetMiB=2), Fleet(tokens=2 * BLOCK)):
        bounded.heat(1, times=9)
        bounded.heat(2, 3, 4, times=5)
        bounded.heat(5)
        assert bounded.told() == [("hot-0", "s", {1}), ("hot-1", "s", {5})]
    assert budget_tokens(pool(), HELLO) == 100 * BLOCK
    assert budget_tokens(pool(prefixCache={"budgetMiB": 7}), HELLO) == 7 * BLOCK


def test_what_is_told_leaves_room_for_the_pools_own_prefixes() -> None:
    """They are cached first: whatever came behind them over the budget would take their place."""
    long = {**PREFIX, "messages": [{"role": "system", "content": "x" * 3 * BLOCK}]}
    for blocks, expected in ((4, [("hot-0", "s", {1, 2})]), (3, []), (1, [])):
        fleet = Fleet(budgetMiB=blocks, warmPrefixes=[long])
        fleet.heat(1, 2)
        assert fleet.told(state(0, held=0, warmth=Warmth(total=1))) == expected


def test_a_new_worker_computes_no_longer_than_it_may() -> None:
    """At the median pace of the workers there are."""
    fleet = Fleet(seconds=2)
    fleet.heat(1, times=9)
    fleet.heat(2, 3, 4, times=5)
    for number, rate in enumerate((BLOCK, 1.0, 1e9)):
        fleet.fleet.report(f"demo-{number + 5}", prefill_tokens_per_second=rate)
    assert fleet.told() == [("hot-0", "s", {1})]


def test_what_is_promised_comes_first_within_its_share() -> None:
    contract = {"tenant": "umbrella", "share": 0.02}  # 2 blocks of 100
    fleet = Fleet(tokens=4 * BLOCK, contracts=(contract,))
    fleet.heat(1, times=20)
    fleet.heat(2, 3, times=10)
    fleet.heat(4, tenant="umbrella", salt="u", times=3)
    fleet.heat(5, tenant="umbrella", salt="u", times=2)
    fleet.heat(6, tenant="umbrella", salt="u", times=2)
    told = fleet.told()
    assert told[0] == ("hot-0", "u", {4})
    assert [salt for _, salt, _ in told] == ["u", "u", "s", "u"], "the third of umbrella's is beyond its share"
    assert (told[2][2], told[3][2] < {5, 6}) == ({1}, True)


# The whole control plane, with real agents beside fake engines.

SYSTEM = "You are a support agent of many words. " * 20


@pytest.fixture
def worker_settings(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "index.key").write_text(base64.urlsafe_b64encode(INDEX_KEY).decode())
    (tmp_path / "worker.key").write_text(WORKER_KEY)
    return {
        "pool": POOL,
        "index_key_file": tmp_path / "index.key",
        "worker_key_file": tmp_path / "worker.key",
        "token_file": tmp_path / "reports.token",
        "http_host": "127.0.0.1",
        "http_port": 0,
        "poll_seconds": 0.05,
        "weights": "fake",
    }


@asynccontextmanager
async def agent(worker: FakeEngine, *made: Plane, name: str, told: dict[str, Any]) -> AsyncIterator[Agent]:
    """A worker's real agent, reporting to all these."""
    planes = ",".join(one.internal.replace("http", "ws", 1) for one in made)
    settings = AgentSettings(worker=name, engine_url=worker.url, control_planes=planes, **told)
    async with running_agent(settings) as agent:
        yield agent


def list_workers(folder: Path, *workers: FakeEngine) -> None:
    """The first one is ready."""
    listed = [{"name": f"demo-{i}", "url": one.url, "ready": i == 0} for i, one in enumerate(workers)]
    (folder / "endpoints.json").write_text(json.dumps({POOL: listed}))


async def heat(made: Plane) -> None:
    """Ask until what the requests share is hot, and its ids are known."""
    questions = count()
    while not value(made.plane.metrics, "hot_prefix_fetches_total", outcome="learnt"):
        told = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"q{next(questions)}"}]
        assert (await made.chat(messages=told))[0] == 200  # keys are known as soon as the worker's report is
        assert next(questions) < 2000


async def test_a_new_worker_holds_what_is_hot_before_its_first_request(
    tmp_path: Path, worker_settings: dict[str, Any]
) -> None:
    slow = 100.0  # tokens a second: computing takes longer than all else
    async with (
        engine(plugin=True) as old,
        engine(plugin=True, prefill_tokens_per_second=slow) as new,
        running(tmp_path, old) as made,
    ):
        list_workers(tmp_path, old, new)
        await until(lambda: len(made.plane.fleet.view().workers) == 2)
        async with agent(old, made, name="demo-0", told=worker_settings):
            await until(partial(_reported, made))
            await heat(made)
            async with agent(new, made, name="demo-1", told=worker_settings) as joining:
                await until(lambda: not joining.unready, 60)
                assert _longest(new) >= 0.9 * _shared(old)
        asked = [seen.path for seen in new.requests if seen.path.startswith("/v1/c")]
        assert set(asked) == {"/v1/completions"}  # the agent's own
        assert {salt for salt, _ in new.held_chains()} == {SALT}
    assert value(made.plane.metrics, "hot_warmed_workers_total") == 1


CONTRACT = """
  tenancy:
    contracts:
    - {tenant: default, share: 0.5, hitObjective: {ratio: 0.8, windowSeconds: 60, minTokens: 1}}
"""


LATER = 4_000_000_020.0


async def ask(made: Plane, times: int) -> None:
    told = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "q"}]
    for _ in range(times):
        assert (await made.chat(messages=told))[0] == 200


def judged(made: Plane, minutes: int) -> ContractState:
    """What is shown of the contract in a minute of a clock that stands still meanwhile."""
    records = made.plane.contracts
    records._clock = lambda: LATER + 60.0 * minutes
    records.tick()
    [shown] = records.states()
    return shown


async def ready_alone(made: Plane, name: str) -> None:
    await until(lambda: [one.name for one in made.plane.fleet.view().workers if one.ready] == [name])


async def test_a_contracts_hits_survive_a_rollout_and_a_scale_in(
    tmp_path: Path, worker_settings: dict[str, Any]
) -> None:
    """A new worker takes the old one's place, another one joins, and the first of these goes."""
    async with AsyncExitStack() as stack:
        old, new, last = [await stack.enter_async_context(engine(plugin=True)) for _ in range(3)]
        made = await stack.enter_async_context(running(tmp_path, old))
        (tmp_path / "pool.yaml").write_text(POOL_FILE.rstrip() + CONTRACT)
        view = made.plane.fleet.view
        await stack.enter_async_context(agent(old, made, name="demo-0", told=worker_settings))
        await until(partial(_reported, made))
        await until(lambda: any(one.idle is not None for one in view().held))
        judged(made, 0)
        await heat(made)
        steps = ((2, "demo-0", old, "demo-1", new), (4, "demo-1", new, "demo-2", last))
        for minutes, leaving, worker, name, joining in steps:
            write_workers(tmp_path, {leaving: worker, name: joining}, ready={leaving})
            joined = await stack.enter_async_context(agent(joining, made, name=name, told=worker_settings))
            await until(partial(_takes_traffic, joined), 60)
            write_workers(tmp_path, {name: joining}, ready={name})
            await ready_alone(made, name)
            judged(made, minutes)
            await ask(made, 3)
            shown = judged(made, minutes + 1)
            assert (shown.met, shown.reasons) == (True, ()), shown
            assert shown.hit_ratio is not None
            assert shown.hit_ratio > 0.8
    assert value(made.plane.metrics, "hot_warmed_workers_total") == 2


@asynccontextmanager
async def two_engines(folder: Path) -> AsyncIterator[tuple[FakeEngine, FakeEngine, Plane, AsyncExitStack]]:
    """Two engines, a control plane before the first one, and what ends with them."""
    async with (
        engine(plugin=True) as old,
        engine(plugin=True) as new,
        running(folder, old) as made,
        AsyncExitStack() as stack,
    ):
        yield old, new, made, stack


async def two_workers(
    stack: AsyncExitStack, made: Plane, workers: tuple[FakeEngine, FakeEngine], folder: Path, told: dict[str, Any]
) -> tuple[Agent, AsyncExitStack]:
    """What a contract promises is hot, on the first of two workers alone: its agent, and what ends that."""
    old, new = workers
    (folder / "pool.yaml").write_text(POOL_FILE.rstrip() + CONTRACT)
    write_workers(folder, {"demo-0": old, "demo-1": new}, ready={"demo-0"})
    await stack.enter_async_context(agent(new, made, name="demo-1", told=told))
    dies = await stack.enter_async_context(AsyncExitStack())
    first = await dies.enter_async_context(agent(old, made, name="demo-0", told=told))
    await until(lambda: all(one.connected for one in made.plane.fleet.view().workers))
    await until(lambda: any(one.idle is not None for one in made.plane.fleet.view().held))
    judged(made, 0)
    await heat(made)
    return first, dies


async def test_a_draining_workers_contract_prefixes_are_computed_by_one_that_stays(
    tmp_path: Path, worker_settings: dict[str, Any]
) -> None:
    async with two_engines(tmp_path) as (old, new, made, stack):
        leaving, ends = await two_workers(stack, made, (old, new), tmp_path, worker_settings)
        assert not new.held_chains()
        write_workers(tmp_path, {"demo-0": old, "demo-1": new}, ready={"demo-0", "demo-1"})
        await until(lambda: sum(one.ready for one in made.plane.fleet.view().workers) == 2)
        leaving.drain(Drain(seconds=60))
        await until(lambda: _longest(new) >= 0.9 * _shared(old), 60)
        assert value(made.plane.metrics, "contract_copied_prefixes_total") == 1
        await ends.aclose()
        write_workers(tmp_path, {"demo-1": new}, ready={"demo-1"})
        await ready_alone(made, "demo-1")
        judged(made, 2)
        await ask(made, 3)
        assert judged(made, 3).met


async def test_a_dead_workers_contract_prefixes_are_computed_by_one_that_stays(
    tmp_path: Path, worker_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving_workers, "LOOK_SECONDS", 0)
    async with two_engines(tmp_path) as (old, new, made, stack):
        _, ends = await two_workers(stack, made, (old, new), tmp_path, worker_settings)
        write_workers(tmp_path, {"demo-0": old, "demo-1": new}, ready={"demo-0", "demo-1"})
        watched = made.plane.hot.new_workers._leaving
        assert watched is not None
        await until(lambda: (watched._seen.get(POOL) or (0, ()))[1] == {"demo-0", "demo-1"})
        judged(made, 1)
        await ends.aclose()
        await old.crash()
        write_workers(tmp_path, {"demo-1": new}, ready={"demo-1"})
        await ready_alone(made, "demo-1")
        await until(lambda: _longest(new) >= 0.9 * _shared(old), 60)
        await ask(made, 3)
        kept = judged(made, 2)
        assert (kept.met, kept.reasons) == (True, ()), kept


async def test_a_contract_whose_worker_died_is_not_met_for_its_reason_and_then_is_again(
    tmp_path: Path, worker_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where nobody stays who could compute it before it is asked for."""
    monkeypatch.setattr(leaving_workers, "LOOK_SECONDS", math.inf)
    async with two_engines(tmp_path) as (old, new, made, stack):
        _, ends = await two_workers(stack, made, (old, new), tmp_path, worker_settings)
        judged(made, 1)
        await ask(made, 3)
        assert judged(made, 2).met
        await ends.aclose()
        await old.crash()
        write_workers(tmp_path, {"demo-1": new}, ready={"demo-1"})
        await ready_alone(made, "demo-1")
        await ask(made, 1)
        broken = judged(made, 3)
        assert (broken.met, broken.reasons, broken.hit_ratio) == (False, ("hit_objective",), 0.0)
        assert broken.lost_cause in {"held_elsewhere", "moved", "restarted", "stale"}, broken
        await ask(made, 3)
        kept = judged(made, 4)
        assert (kept.met, kept.hour.missed_minutes) == (True, broken.hour.missed_minutes)


def _takes_traffic(worker: Agent) -> bool:
    return not worker.unready


def write_workers(folder: Path, workers: dict[str, FakeEngine], ready: set[str]) -> None:
    listed = [{"name": name, "url": one.url, "ready": name in ready} for name, one in workers.items()]
    (folder / "endpoints.json").write_text(json.dumps({POOL: listed}))


async def test_a_named_conversation_is_not_rendered_again_for_its_ids(
    tmp_path: Path, worker_settings: dict[str, Any]
) -> None:
    """It was rendered with its ids, for its checkpoint."""
    async with (
        engine(plugin=True) as worker,
        running(tmp_path, worker) as made,
        agent(worker, made, name="demo-0", told=worker_settings),
        aiohttp.ClientSession(headers={"x-cachefleet-session": "talk"}) as http,
    ):
        await until(partial(_reported, made))
        messages, url = [{"role": "system", "content": SYSTEM}], made.gateway + "/v1/chat/completions"
        for number in range(200):
            messages.append({"role": "user", "content": f"q{number}"})
            async with http.post(url, json={"messages": messages, "max_tokens": 1}) as answer:
                assert answer.status == 200, await answer.text()
            if value(made.plane.metrics, "hot_prefix_fetches_total", outcome="learnt"):
                break
        assert value(made.plane.metrics, "hot_prefix_fetches_total", outcome="learnt") == 1
        rendered = [seen.path for seen in worker.requests if "/render" in seen.path]
        assert len(rendered) == number + 1


async def test_two_replicas_both_tell_and_nothing_is_computed_twice(
    tmp_path: Path, worker_settings: dict[str, Any]
) -> None:
    folders = [tmp_path, tmp_path / "other"]
    folders[1].mkdir()
    async with (
        engine(plugin=True) as old,
        engine(plugin=True) as new,
        running(folders[0], old) as one,
        running(folders[1], old) as two,
    ):
        for folder in folders:
            list_workers(folder, old, new)
        async with agent(old, one, two, name="demo-0", told=worker_settings):
            for made in (one, two):
                await until(partial(_reported, made))
                await heat(made)
            async with agent(new, one, two, name="demo-1", told=worker_settings) as joining:
                await until(lambda: not joining.unready, 60)
                assert _longest(new) >= 0.9 * _shared(old)
                await until(lambda: all(value(x.plane.metrics, "hot_warmed_workers_total") == 1 for x in (one, two)))
                await until(lambda: joining.controller._warm_up.warmth.done >= 2)
        counted = new.worker.scheduler.counters
        computed = counted.queries - counted.hits
        assert computed < 1.5 * _shared(old)


def _reported(made: Plane) -> bool:
    return any(one.load for one in made.plane.fleet.view().workers)


def _longest(worker: FakeEngine) -> int:
    return max((len(ids) for _, ids in worker.held_chains()), default=0)


def _shared(worker: FakeEngine) -> int:
    """Tokens of the system prompt's whole blocks."""
    return len(worker.tokenizer.encode(SYSTEM)) // BLOCK * BLOCK


def remember(hot: HotPrefixes, tenant: TenantId, salt: str) -> None:
    line, keys = Line("default/fake", "c", tenant, salt), salt.encode()[:8]
    hot.note(line, keys, 0.0)
    wanted = hot.note(line, keys, 0.0)
    assert wanted is not None
    hot.learn(wanted.key, array("I", [7] * BLOCK).tobytes())


async def test_prefixes_of_a_tenant_go_with_it_and_with_its_salt(tmp_path: Path) -> None:
    acme = TenantId("acme")
    async with engine(plugin=True) as worker, running(tmp_path, worker) as made:
        hot, service = made.plane.hot.new_workers._hot, made.plane.tenancy.service
        await service.create(TenantRecord(name=acme))
        remember(hot, acme, tenant_salt(FLEET_KEY.salt_key, acme))
        remember(hot, DEFAULT_TENANT, SALT)
        remember(hot, DEFAULT_TENANT, "of an older version")

        def salts() -> set[str]:
            return {one.line.salt for one in hot.hottest(lambda _: True, 0.0, tokens=1000, most=9)}

        await service.create(TenantRecord(name=TenantId("umbrella")))
        assert salts() == {SALT, tenant_salt(FLEET_KEY.salt_key, acme)}
        await service.delete(acme)
        assert salts() == {SALT}
        await service.create(TenantRecord(name=DEFAULT_TENANT, salt_version=2))
        assert salts() == set()
