"""The flood on a real engine: its clients, its rounds, and what they tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench import fairness_clients, fairness_real
from bench.fairness_clients import OUTPUTS, PROMPT_TOKENS, TENANT_HEADER, Clients, Demand, Phase, UnsoundError, clients
from bench.fairness_phases import FLOOD, HALF, MODEST, UNBOUNDED, PhaseLog, verdict
from bench.fairness_real import ORDERS, PATIENCE, POOL, Rounds, admit
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.source import FilePoolSource
from cachefleet_core.pool.spec import parse_pools
from cachefleet_local.fleet.local_fleet import pools_text

LEAST = 3


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness_clients, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(fairness_clients, "LEAST", LEAST)
    monkeypatch.setattr(fairness_real, "IN_FORCE_SECONDS", 0)


class Gateway:
    """Answers at once, with a usage that it is told; ``asked`` counts requests by tenant and what a file says then."""

    broken = ""
    """The tenant that is refused."""

    def __init__(self, pool: Path | None = None, **usage: int) -> None:
        self.asked: Counter[tuple[str, str]] = Counter()
        self._pool = pool
        self._usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": OUTPUTS} | usage

    async def answer(self, request: web.Request) -> web.Response:
        said = str(yaml.safe_load(self._pool.read_text())["spec"]["admission"]) if self._pool else ""
        tenant = request.headers[TENANT_HEADER]
        self.asked[tenant, said] += 1
        if tenant == self.broken:
            return web.json_response({}, status=503)
        choices, body = [{"text": "a"}], await request.json()
        if not body.get("stream"):
            return web.json_response({"choices": choices, "usage": self._usage})
        parts = ('{"choices": [{"text": "a"}]}', web.json_response({"choices": choices, "usage": self._usage}).text)
        return web.Response(text="".join(f"data: {part}\n\n" for part in (*parts, "[DONE]")))


@asynccontextmanager
async def before(gateway: Gateway, *, stream: bool) -> AsyncIterator[Clients]:
    app = web.Application()
    app.router.add_post("/v1/completions", gateway.answer)
    async with (
        TestServer(app) as server,
        clients(f"http://{server.host}:{server.port}", stream=stream, pause=0) as given,
    ):
        yield given


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wrong", [{"completion_tokens": OUTPUTS - 1}, {"prompt_tokens": 1}])
async def test_answers_that_are_not_whole_are_not_timed(wrong: dict[str, Any], stream: bool) -> None:  # noqa: FBT001
    with pytest.raises(UnsoundError, match="quiet"):
        async with before(Gateway(**wrong), stream=stream):
            pass


@pytest.mark.parametrize("demand", [Demand(at_a_time=2), Demand(a_second=400.0)])
async def test_a_flood_that_breaks_off_is_told(demand: Demand) -> None:
    gateway = Gateway()
    async with before(gateway, stream=True) as given:
        gateway.broken = "noisy"
        with pytest.raises(UnsoundError, match="the flood broke off"):
            await given.phase(demand, seconds=0.2)


@pytest.mark.parametrize("demand", [Demand(at_a_time=2), Demand(a_second=400.0)])
async def test_a_phase_counts_all_answers_and_times_the_quiet_tenants(demand: Demand) -> None:
    gateway = Gateway()
    async with before(gateway, stream=True) as given:
        phase = await given.phase(demand, seconds=0.2)
    assert phase.noisy > 0
    assert phase.answers == phase.noisy + len(phase.seconds)
    assert all(0 < first <= whole for first, whole in zip(phase.firsts, phase.seconds, strict=True))


async def test_each_round_has_each_demand_under_each_order(tmp_path: Path) -> None:
    pool = tmp_path / "pools.yaml"
    pool.write_text("metadata: {generation: 1}\nspec: {admission: {}}\n")
    gateway = Gateway(pool)
    async with before(gateway, stream=False) as given:
        rounds = Rounds(given, pool, ORDERS, seconds=0.01)
        await rounds.play(2)
    for admission in ORDERS.values():
        said = yaml.safe_load(f"{{{PATIENCE}, {admission}}}")
        assert gateway.asked["noisy", str(said)] > 0
    judged = [one for one in rounds.log.rows() if "bar" in one]
    assert {(one["setting"], one["beside"]) for one in judged} == {
        (order, beside) for order in ORDERS for beside in (MODEST, HALF)
    }
    assert len(rounds.alone) == 2


def test_the_control_plane_reads_what_an_order_admits_and_nothing_of_the_one_before(tmp_path: Path) -> None:
    pool = tmp_path / "pools.yaml"
    pool.write_text(pools_text(parse_pools(POOL)))
    source = FilePoolSource(pool, tmp_path / "endpoints.json", metrics=Metrics())
    read = []
    for admission in ORDERS.values():
        admit(pool, admission)
        (view,) = source.poll() or ()
        found = view.pool.spec.admission
        read.append((found.max_queue_seconds, found.shared_ahead_seconds, found.shared_requests))
        assert not source.problem
    assert read == [(300, 0, 0), (300, 0.001, 0), (300, 0, 2)]


def phase(scale: float, rate: float) -> Phase:
    seconds = [float(number) * scale for number in range(1, 101)]
    return Phase(seconds, [one / 2 for one in seconds], answers=int(rate * 10), noisy=100, took=10.0)


def logged(scales: dict[str, float]) -> PhaseLog:
    """Four phases of each demand; while the noisy tenant floods, quiet answers take so long by order."""
    log = PhaseLog()
    for order, scale in scales.items():
        for number in range(4):
            log.add(order, FLOOD, phase(scale + number / 100, 40.0 if order == UNBOUNDED else 30.0))
            log.add(order, MODEST, phase(1.0 + number / 100, 20.0))
            log.add(order, HALF, phase(2.0, 20.0))
    return log


def test_the_bar_is_on_the_slowest_hundredth_of_all_orders_and_is_told_with_its_price() -> None:
    found = [one for one in logged({UNBOUNDED: 3.0, "bounded": 1.0}).rows() if "bar" in one]
    beside = {(one["setting"], one["beside"]): one for one in found}
    free, bounded = beside[UNBOUNDED, MODEST], beside["bounded", MODEST]
    assert (free["kept"], bounded["kept"], beside["bounded", HALF]["kept"]) == (False, True, True)
    assert bounded["ratio"] == pytest.approx(1.0)
    assert bounded["interval"][0] < 1 < bounded["interval"][1] < 1.1
    assert (free["price"], bounded["price"]) == (1.0, pytest.approx(0.75))
    assert verdict(bounded).startswith("bounded meets ≤ 1.1x: 1.00")
    assert verdict(bounded).endswith("with 0.75 of the answers of no bound")
    assert verdict(free).startswith("no bound misses ≤ 1.1x: ")


def test_a_verdict_tells_where_more_phases_are_needed() -> None:
    (found,) = [one for one in logged({"close": 1.1}).rows() if one.get("beside") == MODEST]
    assert "which these phases do not tell for sure" in verdict(found)
