"""The ladder to a prompt's ids: which rung is tried where, and what is remembered."""

import json
from typing import Any

import pytest

from cachefleet_controlplane.gateway.credentials import Credentials
from cachefleet_controlplane.gateway.legs import Outcome
from cachefleet_controlplane.gateway.request import Ask, Endpoint, parse, upstream_body
from cachefleet_controlplane.gateway.upstream import Answer, Opened, Upstream
from cachefleet_controlplane.keying import Keyed, Keying
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools import PoolView, WorkerEndpoint
from cachefleet_controlplane.renderer import (
    ABSENT_SECONDS,
    FAILED_SECONDS,
    Reason,
    Renderer,
    Rendering,
    Rung,
    RungMemory,
    ladder,
    read,
    render_ask,
    tokenizable,
)
from cachefleet_core.blocks import BlockKeyer, Namespace
from tests.controlplane.gateway.harness import FLEET_KEY, MODEL, engine, pool
from tests.controlplane.waiting import value
from tests.fakes.engine import FakeEngine

KEYER = BlockKeyer(b"k" * 32, Namespace("c"), 2)
KEYING = Keying(lambda: KEYER)
MESSAGES = [{"role": "user", "content": "hello there"}]


def ask(endpoint: Endpoint = Endpoint.CHAT, **body: Any) -> Ask:
    base: dict[str, Any] = {"messages": MESSAGES} if endpoint is Endpoint.CHAT else {"prompt": "hello there"}
    return parse(json.dumps({"model": MODEL} | base | body).encode(), endpoint)


def opened(status: int, body: object, outcome: Outcome = Outcome.ANSWERED) -> Opened:
    return Opened(outcome, Answer(status, (), json.dumps(body).encode()))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Rendered:
    """A renderer in front of fake engines, and a clock to turn."""

    def __init__(self, upstream: Upstream, engines: list[FakeEngine], *, seconds: float = 1) -> None:
        self.clock, self.metrics = Clock(), Metrics()
        self.workers = [WorkerEndpoint(f"demo-{i}", e.url, ready=True) for i, e in enumerate(engines)]
        credentials = Credentials(FLEET_KEY)
        credentials.update([PoolView(pool(), tuple(self.workers))])
        self.renderer = Renderer(upstream, credentials, metrics=self.metrics, timeout_seconds=seconds, clock=self.clock)

    async def __call__(self, asked: Ask) -> Rendering:
        first = render_ask(asked)
        body, _ = upstream_body(first, model=MODEL, salt="s")
        return await self.renderer.render(first, body, workers=self.workers, keying=KEYING)

    def failures(self, reason: Reason) -> float:
        return value(self.metrics, "render_failures_total", reason=reason)


def upstream() -> Upstream:
    return Upstream(connect_seconds=1, idle_seconds=5)


def paths(worker: FakeEngine) -> list[str]:
    return [seen.path for seen in worker.requests]


@pytest.mark.parametrize("endpoint", Endpoint)
async def test_ids_are_those_the_engine_computes_with(endpoint: Endpoint) -> None:
    async with engine() as worker, upstream() as http:
        render = Rendered(http, [worker])
        rendering = await render(ask(endpoint))
        assert rendering.rung is Rung.RENDER
        assert len(rendering.prompt.keys) // 8 == rendering.prompt.tokens // 2 > 0
        async with engine(scale_out=False) as older:
            assert (await Rendered(http, [older])(ask(endpoint))) == Rendering(rendering.prompt, Rung.TOKENIZE)
    assert paths(worker) == [f"{endpoint}/render"]
    assert value(render.metrics, "render_seconds_count", rung="render") == 1


@pytest.mark.parametrize("given", [[1, 2], [[1, 2], [3]]])
async def test_ids_given_by_the_client_need_nobody(given: object) -> None:
    async with upstream() as http:
        rendering = await Rendered(http, [])(ask(Endpoint.COMPLETIONS, prompt=given))
        assert rendering == Rendering(Keyed(2, KEYER.packed_keys([1, 2]), 2), Rung.CLIENT)


@pytest.mark.parametrize("given", [[], [[]], [1, "x"], [-1], [2**32], [1.5], ["x"]])
async def test_lists_that_hold_no_ids_are_the_engines_to_judge(given: object) -> None:
    async with upstream() as http:
        rendering = await Rendered(http, [])(ask(Endpoint.COMPLETIONS, prompt=given))
        assert rendering == Rendering(reason=Reason.NO_WORKER)


async def test_of_several_prompts_the_first_is_rendered() -> None:
    async with engine() as worker, upstream() as http:
        render = Rendered(http, [worker])
        one = await render(ask(Endpoint.COMPLETIONS, prompt="one"))
        assert await render(ask(Endpoint.COMPLETIONS, prompt=["one", "two"])) == one


async def test_an_absent_rung_is_left_out_and_tried_again_later() -> None:
    async with engine(scale_out=False) as worker, upstream() as http:
        render = Rendered(http, [worker])
        for _ in range(3):
            await render(ask())
        assert paths(worker) == ["/v1/chat/completions/render", "/tokenize", "/tokenize", "/tokenize"]
        render.clock.now += ABSENT_SECONDS
        await render(ask())
        assert paths(worker)[-2:] == ["/v1/chat/completions/render", "/tokenize"]


async def test_a_worker_that_is_away_is_left_out_for_a_while_and_another_one_asked() -> None:
    async with engine() as dead, engine() as alive, upstream() as http:
        render = Rendered(http, [dead, alive])
        await dead.crash()
        assert (await render(ask())).rung is Rung.RENDER
        await dead.start()
        await render(ask())
        assert not dead.requests
        render.clock.now += FAILED_SECONDS
        await render(ask())
        assert len(dead.requests) == 1


async def test_a_worker_that_hangs_leaves_time_for_another() -> None:
    async with engine() as hanging, engine() as alive, upstream() as http:
        render = Rendered(http, [hanging, alive], seconds=0.4)
        hanging.hang()
        assert (await render(ask())).rung is Rung.RENDER
        assert len(alive.requests) == 1
        hanging.resume()


async def test_a_bad_request_is_nobodys_fault_and_asked_once() -> None:
    async with engine() as one, engine() as two, upstream() as http:
        render = Rendered(http, [one, two])
        assert await render(ask(n=0)) == Rendering(reason=Reason.REFUSED)
        assert len(one.requests) + len(two.requests) == 1
        assert render.failures(Reason.REFUSED) == 1
        assert (await render(ask())).rung is Rung.RENDER


async def test_nobody_to_ask_is_told() -> None:
    async with upstream() as http:
        render = Rendered(http, [])
        assert await render(ask()) == Rendering(reason=Reason.NO_WORKER)
        assert render.failures(Reason.NO_WORKER) == 1


@pytest.mark.parametrize(
    ("got", "reason"),
    [
        (opened(404, {"detail": "Not Found"}), Reason.ABSENT),
        (opened(404, {"error": {"type": "NotFoundError"}}), Reason.REFUSED),
        (opened(501, {"error": {"type": "NotImplementedError"}}), Reason.ABSENT),
        (opened(401, {"error": "Unauthorized"}), Reason.UNAUTHORIZED),
        (opened(400, {"error": {}}), Reason.REFUSED),
        (opened(500, {}, Outcome.SERVER_ERROR), Reason.FAILED),
        (opened(200, {"token_ids": [1], "features": {"image": 1}}), Reason.MULTIMODAL),
        (opened(200, {"token_ids": ["x"]}), Reason.UNREADABLE),
        (opened(200, {}), Reason.UNREADABLE),
        (Opened(Outcome.ANSWERED, Answer(404, (), b'{"error":{"type":"\xff"}}')), Reason.ABSENT),
        (Opened(Outcome.SILENT), Reason.TIMEOUT),
        (Opened(Outcome.UNREACHABLE), Reason.FAILED),
    ],
)
def test_what_an_answer_says(got: Opened, reason: Reason) -> None:
    assert read(got, Rung.RENDER, Endpoint.CHAT, keying=KEYING) == Rendering(reason=reason)


@pytest.mark.parametrize(
    "body",
    [
        {"reasoning_effort": "low"},
        {"documents": [{}]},
        {"truncate_prompt_tokens": 5},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    ],
)
def test_tokenize_is_not_asked_where_it_would_miss_something(body: dict[str, Any]) -> None:
    assert tokenizable(ask())
    assert not tokenizable(ask(**body))


def test_the_best_renderer_comes_first_and_few_are_asked() -> None:
    workers = [WorkerEndpoint(name, f"http://{name}", ready=True) for name in "abc"]
    memory = RungMemory()
    memory.leave_out("http://a", Rung.TOKENIZE, until=5)
    tries = [(one.worker.name, one.rung) for one in ladder(workers, memory, tokenizable=True, now=1)]
    assert tries == [("a", Rung.RENDER), ("b", Rung.RENDER), ("b", Rung.TOKENIZE)]


def test_the_memory_is_bounded() -> None:
    memory = RungMemory(limit=2)
    for name in "abc":
        memory.leave_out(name, Rung.RENDER, until=9)
    assert [memory.open(name, Rung.RENDER, now=1) for name in "abc"] == [True, False, False]
