"""The ladder of knowledge over real sockets: exact, by text, by load, each step down automatic and told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cachefleet_controlplane.gateway.know.render_cache import RenderCache
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_controlplane.routing.decision import Knowledge
from tests.controlplane.gateway.harness import MODEL, Front, chat, engine, front, pool
from tests.controlplane.waiting import value
from tests.fakes.engine import FakeEngine

LONG = "the same long beginning of every prompt " * 40


async def decided(gate: Front, text: str, **changes: Any) -> dict[str, Any]:
    status, _, body = await gate.post("/v1/route", chat(text, **changes))
    assert status == 200, body
    told: dict[str, Any] = json.loads(body)
    return told


def rendered(worker: FakeEngine) -> int:
    return sum(seen.path.endswith(("/render", "/tokenize", "/keys")) for seen in worker.requests)


async def test_what_was_rendered_is_remembered_until_the_worker_comes_back_another() -> None:
    async with engine() as worker, front([worker], render_cache=RenderCache()) as gate:
        gate.report(0)
        assert (await decided(gate, LONG))["rendered_by"] == "render"
        again = await decided(gate, LONG, temperature=0.3)
        assert (again["rendered_by"], again["knowledge"], again["render_failure"]) == ("cache", "exact", None)
        assert rendered(worker) == 1
        assert (await decided(gate, LONG + "else"))["rendered_by"] == "render"
        gate.fleet.update_pools([])
        gate.fleet.update_pools([_view(gate)])
        gate.report(0)
        assert (await decided(gate, LONG))["rendered_by"] == "cache"  # the same contract, the same profile
    assert value(gate.metrics, "render_seconds_count", rung="cache") == 2


@pytest.mark.parametrize("knowledge", [Knowledge.EXACT, Knowledge.APPROXIMATE])
async def test_without_ids_the_text_decides(knowledge: Knowledge) -> None:
    switched_off = knowledge is Knowledge.APPROXIMATE
    options = {"scale_out": False}
    async with engine(**options) as one, engine(**options) as two:
        engines = [one, two]
        async with front(engines, texts=True, knowledge=knowledge) as gate:
            for number in (0, 1):
                gate.report(number)
            body = {"model": MODEL, "input": LONG, "max_output_tokens": 4}
            _, first, _ = await gate.post("/v1/responses", body)
            assert first["x-cachefleet-knowledge"] == "approximate"
            for turn in ("second", "third", "fourth"):
                _, headers, _ = await gate.post("/v1/responses", body | {"input": LONG + turn})
                assert headers["x-cachefleet-worker"] == first["x-cachefleet-worker"]
            status, _, told = await gate.post("/v1/route", body | {"input": LONG + "fifth"})
            decision = json.loads(told)
        records = gate.records
    assert status == 200
    assert (decision["knowledge"], decision["rendered_by"]) == ("approximate", "text")
    assert decision["render_failure"] == ("switched_off" if switched_off else "absent")
    assert decision["predicted_tokens"] > 0
    assert [record.reason for record in records[:4]] == ["cold"] + ["longest_prefix"] * 3
    if switched_off:
        assert rendered(one) + rendered(two) == 0
        assert value(gate.metrics, "render_bypasses_total", reason="switched_off") == 5
    else:
        assert value(gate.metrics, "render_failures_total", reason="absent") == 5


BILLED: list[tuple[str, dict[str, Any], Any]] = [
    ("/v1/messages", {"messages": [{"role": "user", "content": LONG}]}, lambda line: {"system": line + LONG}),
    ("/v1/responses", {"input": LONG}, lambda line: {"instructions": line + LONG}),
    (
        "/v1/chat/completions",
        {},
        lambda line: {"messages": [{"role": "system", "content": line + LONG}, {"role": "user", "content": LONG}]},
    ),
]


@pytest.mark.parametrize("agents", [True, False])
@pytest.mark.parametrize(("path", "body", "system"), BILLED, ids=[path for path, _, _ in BILLED])
async def test_a_text_is_found_again_whatever_the_renderer_leaves_out_of_it(
    path: str, body: dict[str, Any], system: Any, *, agents: bool
) -> None:
    """Claude Code's billing line, another in each request, is at the very beginning: all keys would differ."""
    async with (
        engine() as one,
        engine() as two,
        front([one, two], texts=True, knowledge=Knowledge.APPROXIMATE) as gate,
    ):
        for number in (0, 1) if agents else ():
            gate.report(number)
        assert gate.unseen is not None
        for number in range(4):
            line = f"x-anthropic-billing-header: cc_version=2.1.17; cch={number:05x};\n"
            asked = body | system(line) | {"model": MODEL, "max_tokens": 2, "max_output_tokens": 2}
            assert (await gate.post(path, asked))[0] == 200
            await gate.unseen.settled()
        assert [record.reason for record in gate.records][2:] == ["longest_prefix"] * 2
        other = body | system("y" + line) | {"model": MODEL, "max_tokens": 2, "max_output_tokens": 2}
        assert (await gate.post(path, other))[0] == 200
        assert gate.records[-1].predicted_tokens == 0, "what the renderer shows the model counts"


async def test_estimates_follow_what_the_answers_say() -> None:
    async with engine() as worker, front([worker], texts=True, knowledge=Knowledge.APPROXIMATE) as gate:
        gate.report(0)
        before = (await decided(gate, LONG))["prompt_tokens"]
        for turn in range(30):
            await gate.chat(LONG + str(turn))
        usage = json.loads((await gate.chat(LONG))[2])["usage"]["prompt_tokens"]
        after = (await decided(gate, LONG))["prompt_tokens"]
    assert abs(after - usage) < abs(before - usage)
    assert after == pytest.approx(usage, rel=0.2)


async def test_renderings_teach_what_is_known_when_they_fail() -> None:
    async with engine() as one, engine() as two, front([one, two], texts=True, render_seconds=0.5) as gate:
        for number in (0, 1):
            gate.report(number)
        body = {"model": MODEL, "input": LONG, "max_output_tokens": 4}
        _, first, _ = await gate.post("/v1/responses", body)
        assert first["x-cachefleet-knowledge"] == "exact"
        one.fail_next(500, 2)
        two.fail_next(500, 2)
        _, _, answer = await gate.post("/v1/route", body | {"input": LONG + "second"})
        told = json.loads(answer)
    assert (told["knowledge"], told["rendered_by"], told["render_failure"]) == ("approximate", "text", "failed")
    assert told["worker"] == first["x-cachefleet-worker"]


async def test_where_only_load_may_decide_nothing_is_asked_or_learnt() -> None:
    async with engine() as worker, front([worker], texts=True, knowledge=Knowledge.LOAD) as gate:
        gate.report(0)
        for _ in range(2):
            _, headers, _ = await gate.chat(LONG)
            assert headers["x-cachefleet-knowledge"] == "load"
        told = await decided(gate, LONG)
    assert (told["knowledge"], told["rendered_by"], told["prompt_tokens"]) == ("load", "none", 0)
    assert rendered(worker) == 0


async def test_a_request_that_the_worker_refuses_is_left_to_load() -> None:
    async with engine() as worker, front([worker], texts=True) as gate:
        gate.report(0)
        worker.fail_next(400)
        told = await decided(gate, LONG)
    assert (told["knowledge"], told["render_failure"]) == ("load", "refused")


async def test_before_any_report_what_was_sent_is_known_by_its_text() -> None:
    async with engine() as one, engine() as two, front([one, two], texts=True) as gate:
        _, first, _ = await gate.chat(LONG)
        assert first["x-cachefleet-knowledge"] == "load"
        for turn in ("second", "third"):
            _, headers, _ = await gate.chat(LONG + turn)
            assert headers["x-cachefleet-knowledge"] == "approximate"
            assert headers["x-cachefleet-worker"] == first["x-cachefleet-worker"]
        assert (await decided(gate, LONG))["rendered_by"] == "render"  # the length is exact


async def test_no_text_of_one_tenant_is_known_under_another_salt() -> None:
    async with engine() as worker, front([worker], texts=True, knowledge=Knowledge.APPROXIMATE) as gate:
        gate.report(0)
        await gate.chat(LONG)
        assert (await decided(gate, LONG))["predicted_tokens"] > 0
        gate.fleet.update_pools([_view(gate, isolation="Shared")])
        assert (await decided(gate, LONG))["predicted_tokens"] == 0


def _view(gate: Front, *, isolation: str = "PerTenant") -> PoolView:
    return PoolView(pool(isolation=isolation), gate.endpoints())
