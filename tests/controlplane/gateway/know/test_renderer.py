"""The ladder to a prompt's ids: which rung is tried where, and what is remembered."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from cachefleet_controlplane.gateway.apis.parse import parse, upstream_body
from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.gateway.know.render_cache import RenderCache
from cachefleet_controlplane.gateway.know.render_ladder import TOKENIZE_PATH, Renderers, RungMemory, ladder, tokenizable
from cachefleet_controlplane.gateway.know.renderer import Renderer, render_ask
from cachefleet_controlplane.gateway.know.rendering_result import (
    ABSENT_SECONDS,
    BUSY_SECONDS,
    FAILED_SECONDS,
    Keying,
    read,
)
from cachefleet_controlplane.gateway.request.rendered_prompt import Keyed, RenderFailure, Rendering, Rung
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import Answer, AttemptResult
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.workers.render_profiles import RenderFacts
from cachefleet_core.block_keys import BlockKeyer, Namespace
from tests.controlplane.gateway.harness import FLEET_KEY, MODEL, POOL, engine, pool
from tests.controlplane.waiting import value
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.usefixtures("hurried")

INDEX_KEY = b"k" * 32
CONTRACT = "sha256:" + "0" * 64
KEYER = BlockKeyer(INDEX_KEY, Namespace(CONTRACT, "s"), 2)
KEYING = Keying(lambda: KEYER)
MESSAGES = [{"role": "user", "content": "hello there"}]


def ask(endpoint: Endpoint = Endpoint.CHAT, **body: Any) -> RequestInfo:
    base: dict[str, Any] = {"messages": MESSAGES} if endpoint is Endpoint.CHAT else {"prompt": "hello there"}
    return parse(json.dumps({"model": MODEL} | base | body).encode(), endpoint)


def opened(status: int, body: object, outcome: Outcome = Outcome.ANSWERED) -> AttemptResult:
    return AttemptResult(outcome, Answer(status, (), json.dumps(body).encode()))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Rendered:
    """A renderer in front of fake engines, and a clock to turn."""

    def __init__(
        self,
        upstream: Upstream,
        engines: list[FakeEngine],
        *,
        seconds: float = 600,
        keys: bool = False,
        cache: RenderCache | None = None,
        dedicated: Sequence[str] = (),
    ) -> None:
        self.clock, self.metrics = Clock(), Metrics()
        self.workers = [WorkerEndpoint(f"demo-{i}", e.url, ready=True) for i, e in enumerate(engines)]
        credentials = Credentials(FLEET_KEY)
        credentials.update([PoolView(pool(), tuple(self.workers))])
        self.renderer = Renderer(
            upstream,
            credentials,
            metrics=self.metrics,
            timeout_seconds=seconds,
            cache=cache,
            dedicated=Renderers(dedicated),
            clock=self.clock,
        )
        urls = frozenset(worker.url for worker in self.workers) if keys else frozenset()
        known = bool(keys or dedicated or cache)
        contract = CONTRACT if known else ""
        self.facts = RenderFacts(MODEL, POOL, contract=contract, block_size=2, profiles=("p",), keys_at=urls)

    async def __call__(self, asked: RequestInfo, *, salt: str = "s") -> Rendering:
        first = render_ask(asked)
        body, _ = upstream_body(first, model=MODEL, salt=salt)
        return await self.renderer.render(first, body, workers=self.workers, keying=KEYING, facts=self.facts, salt=salt)

    def failures(self, reason: RenderFailure) -> float:
        return value(self.metrics, "render_failures_total", reason=reason)


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    async with Completions() as completions, Upstream(completions, connect_seconds=60, idle_seconds=600) as made:
        yield made


def paths(worker: FakeEngine) -> list[str]:
    return [seen.path for seen in worker.requests]


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
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


@pytest.mark.parametrize("endpoint", [Endpoint.RESPONSES, Endpoint.MESSAGES])
async def test_apis_that_tokenize_does_not_know_are_rendered_or_not_known(endpoint: Endpoint) -> None:
    body = {"input": MESSAGES} if endpoint is Endpoint.RESPONSES else {"messages": MESSAGES, "max_tokens": 1}
    asked = parse(json.dumps({"model": MODEL} | body).encode(), endpoint)
    async with engine() as worker, engine(scale_out=False) as older, upstream() as http:
        rendering = await Rendered(http, [worker])(asked)
        assert rendering == await Rendered(http, [worker])(ask())  # the same conversation
        render = Rendered(http, [older])
        assert await render(asked) == Rendering(reason=RenderFailure.ABSENT)
        # That a route is missing says nothing of another API's.
        await render(ask())
        assert paths(older) == [f"{endpoint}/render", "/v1/chat/completions/render", "/tokenize"]


@pytest.mark.parametrize("given", [[1, 2], [[1, 2], [3]]])
async def test_ids_given_by_the_client_need_nobody(given: object) -> None:
    async with upstream() as http:
        rendering = await Rendered(http, [])(ask(Endpoint.COMPLETIONS, prompt=given))
        assert rendering == Rendering(Keyed(2, KEYER.packed_keys([1, 2]), 2), Rung.CLIENT)


@pytest.mark.parametrize("given", [[], [[]], [1, "x"], [-1], [2**32], [1.5], ["x"]])
async def test_lists_that_hold_no_ids_are_the_engines_to_judge(given: object) -> None:
    async with upstream() as http:
        rendering = await Rendered(http, [])(ask(Endpoint.COMPLETIONS, prompt=given))
        assert rendering == Rendering(reason=RenderFailure.NO_WORKER)


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
        render = Rendered(http, [hanging, alive], seconds=40)
        hanging.hang()
        assert (await render(ask())).rung is Rung.RENDER
        assert len(alive.requests) == 1
        hanging.resume()


async def test_a_bad_request_is_nobodys_fault_and_asked_once() -> None:
    async with engine() as one, engine() as two, upstream() as http:
        render = Rendered(http, [one, two])
        assert await render(ask(n=0)) == Rendering(reason=RenderFailure.REFUSED)
        assert len(one.requests) + len(two.requests) == 1
        assert render.failures(RenderFailure.REFUSED) == 1
        assert (await render(ask())).rung is Rung.RENDER


async def test_nobody_to_ask_is_told() -> None:
    async with upstream() as http:
        render = Rendered(http, [])
        assert await render(ask()) == Rendering(reason=RenderFailure.NO_WORKER)
        assert render.failures(RenderFailure.NO_WORKER) == 1


@pytest.mark.parametrize(
    ("got", "reason"),
    [
        (opened(404, {"detail": "Not Found"}), RenderFailure.ABSENT),
        (opened(404, {"error": {"type": "NotFoundError"}}), RenderFailure.REFUSED),
        (opened(501, {"error": {"type": "NotImplementedError"}}), RenderFailure.ABSENT),
        (opened(401, {"error": "Unauthorized"}), RenderFailure.UNAUTHORIZED),
        (opened(400, {"error": {}}), RenderFailure.REFUSED),
        (opened(500, {}, Outcome.SERVER_ERROR), RenderFailure.FAILED),
        (opened(200, {"token_ids": [1], "features": {"image": 1}}), RenderFailure.MULTIMODAL),
        (opened(200, {"token_ids": ["x"]}), RenderFailure.UNREADABLE),
        (opened(200, {}), RenderFailure.UNREADABLE),
        (AttemptResult(Outcome.ANSWERED, Answer(404, (), b'{"error":{"type":"\xff"}}')), RenderFailure.ABSENT),
        (AttemptResult(Outcome.SILENT), RenderFailure.TIMEOUT),
        (AttemptResult(Outcome.UNREACHABLE), RenderFailure.FAILED),
    ],
)
def test_what_an_answer_says(got: AttemptResult, reason: RenderFailure) -> None:
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
    tries = [(one.worker.name, one.rung) for one in ladder(workers, info=ask())]
    assert tries == [(name, rung) for rung in (Rung.RENDER, Rung.TOKENIZE) for name in "ab"]


def test_the_memory_is_bounded() -> None:
    memory = RungMemory(limit=2)
    for name in "abc":
        memory.leave_out(name, TOKENIZE_PATH, until=9)
    assert [memory.open(name, TOKENIZE_PATH, now=1) for name in "abc"] == [True, False, False]


KEYS = "/v1/fleet/keys"
RENDER = "/v1/chat/completions/render"


def keyed_engine(**options: Any) -> FakeEngine:
    return engine(plugin=True, index_key=INDEX_KEY, **options)


class TestMemo:
    async def test_what_was_rendered_is_not_rendered_again(self) -> None:
        async with engine() as worker, upstream() as http:
            render = Rendered(http, [worker], cache=RenderCache())
            one = await render(ask(max_tokens=3))
            assert await render(ask(temperature=0, n=2)) == Rendering(one.prompt, Rung.CACHE)
            assert value(render.metrics, "render_seconds_count", rung="cache") == 1
        assert paths(worker) == [RENDER]

    async def test_another_salt_contract_profile_or_prompt_is_rendered(self) -> None:
        async with engine() as worker, upstream() as http:
            render = Rendered(http, [worker], cache=RenderCache())
            await render(ask())
            assert (await render(ask(), salt="t")).rung is Rung.RENDER
            assert (await render(ask(messages=[{"role": "user", "content": "else"}]))).rung is Rung.RENDER
            facts = render.facts
            for changed in (replace(facts, contract="sha256:1"), replace(facts, profiles=("p", "q"))):
                render.facts = changed
                assert (await render(ask())).rung is Rung.RENDER
                assert (await render(ask())).rung is Rung.CACHE

    async def test_a4_ids_are_for_their_request_alone(self) -> None:
        async with engine() as worker, upstream() as http:
            render = Rendered(http, [worker], cache=RenderCache())
            body, _ = upstream_body(ask(), model=MODEL, salt="s")
            asked = partial(render.renderer.render, ask(), body, workers=render.workers, facts=render.facts, salt="s")
            kept = await asked(keying=msgspec.structs.replace(KEYING, keep_ids=True))
            assert kept.prompt.ids is not None
            assert len(kept.prompt.ids) == kept.prompt.tokens
            plain = await asked(keying=KEYING)
            assert (plain.rung, plain.prompt) == (Rung.CACHE, msgspec.structs.replace(kept.prompt, ids=None))
            assert (await asked(keying=msgspec.structs.replace(KEYING, keep_ids=True))).rung is Rung.RENDER

    async def test_a_failure_is_not_remembered(self) -> None:
        async with engine() as worker, upstream() as http:
            render = Rendered(http, [worker], cache=RenderCache())
            worker.fail_next(400)
            assert (await render(ask())).reason is RenderFailure.REFUSED
            assert (await render(ask())).rung is Rung.RENDER


class TestKeys:
    @pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
    async def test_keys_of_a_worker_are_those_of_its_ids(self, endpoint: Endpoint) -> None:
        async with keyed_engine() as worker, upstream() as http:
            rendering = await Rendered(http, [worker], keys=True)(ask(endpoint))
            plain = await Rendered(http, [worker])(ask(endpoint))
        assert (rendering.rung, plain.rung) == (Rung.KEYS, Rung.RENDER)
        last = rendering.prompt.tokens - len("assistant\n")
        assert rendering.prompt.boundaries[-1:] == ((last,) if endpoint is Endpoint.CHAT else ())
        assert msgspec.structs.replace(rendering.prompt, boundaries=()) == plain.prompt
        assert plain.prompt.keys

    async def test_a_worker_that_did_not_announce_them_is_not_asked(self) -> None:
        async with keyed_engine() as worker, upstream() as http:
            await Rendered(http, [worker], dedicated=())(ask())
        assert paths(worker) == [RENDER]

    async def test_keys_of_other_apis_are_asked_for_by_name(self) -> None:
        asked = parse(json.dumps({"model": MODEL, "input": MESSAGES}).encode(), Endpoint.RESPONSES)
        async with keyed_engine() as worker, upstream() as http:
            keyed, plain = [await Rendered(http, [worker], keys=keys)(asked) for keys in (True, False)]
        assert (keyed.rung, plain.rung) == (Rung.KEYS, Rung.RENDER)
        assert (keyed.prompt.tokens, keyed.prompt.keys) == (plain.prompt.tokens, plain.prompt.keys)
        assert paths(worker) == [KEYS, "/v1/responses/render"]

    async def test_without_the_feature_the_next_rung_is_taken(self) -> None:
        async with engine(plugin=True) as off, engine() as none, upstream() as http:
            for worker, pause in ((off, FAILED_SECONDS), (none, ABSENT_SECONDS)):
                render = Rendered(http, [worker], keys=True)
                assert [(await render(ask())).rung for _ in range(2)] == [Rung.RENDER] * 2
                assert paths(worker) == [KEYS, RENDER, RENDER]
                render.clock.now += pause
                await render(ask())
                assert paths(worker)[-2:] == [KEYS, RENDER]

    async def test_a_prompt_that_no_worker_takes_has_no_keys(self) -> None:
        async with keyed_engine() as worker, upstream() as http:
            render = Rendered(http, [worker], keys=True)
            body, _ = upstream_body(ask(), model=MODEL, salt="s")
            short = msgspec.structs.replace(KEYING, max_tokens=3)
            got = await render.renderer.render(
                ask(), body, workers=render.workers, keying=short, facts=render.facts, salt="s"
            )
        assert (got.prompt.tokens > 3, got.prompt.keys, got.prompt.block_size) == (True, b"", 0)

    @pytest.mark.parametrize(
        ("got", "reason"),
        [
            (opened(429, {"error": {"code": "busy"}}), RenderFailure.BUSY),
            (opened(413, {"error": {"code": "too_large"}}), RenderFailure.DECLINED),
            (opened(400, {"error": {"code": "bad_contract"}}), RenderFailure.DECLINED),
            (opened(400, {"error": {"type": "BadRequestError"}}), RenderFailure.REFUSED),
            (opened(403, {"error": {"code": "wrong_token"}}), RenderFailure.UNAUTHORIZED),
            (opened(503, {"error": {"code": "keys_off"}}, Outcome.SERVER_ERROR), RenderFailure.FAILED),
            (AttemptResult(Outcome.ANSWERED, Answer(200, (), b"CFPK")), RenderFailure.UNREADABLE),
            (
                AttemptResult(Outcome.ANSWERED, Answer(200, (), b"CFPK" + bytes([1, 0, 0, 0, 0, 0, 0, 0]))),
                RenderFailure.UNREADABLE,
            ),
        ],
    )
    def test_what_an_answer_says(self, got: AttemptResult, reason: RenderFailure) -> None:
        assert read(got, Rung.KEYS, Endpoint.CHAT, keying=KEYING) == Rendering(reason=reason)

    async def test_where_keys_fail_vllm_renders_and_keys_are_asked_for_again_later(self) -> None:
        async with keyed_engine() as worker, upstream() as http:
            render = Rendered(http, [worker], keys=True)
            worker.fail_next(503)
            assert (await render(ask())).rung is Rung.RENDER
            render.clock.now += BUSY_SECONDS
            assert (await render(ask())).rung is Rung.RENDER
            render.clock.now += FAILED_SECONDS
            assert (await render(ask())).rung is Rung.KEYS


class TestDedicated:
    async def test_they_come_first_and_take_turns(self) -> None:
        async with keyed_engine() as one, keyed_engine() as two, engine() as worker, upstream() as http:
            render = Rendered(http, [worker], dedicated=[one.url, two.url + "/"])
            assert [(await render(ask())).rung for _ in range(4)] == [Rung.KEYS] * 4
        assert (paths(one), paths(two), paths(worker)) == ([KEYS] * 2, [KEYS] * 2, [])

    async def test_one_without_the_plugin_renders(self) -> None:
        async with engine() as one, engine() as worker, upstream() as http:
            render = Rendered(http, [worker], dedicated=[one.url])
            assert [(await render(ask())).rung for _ in range(2)] == [Rung.RENDER] * 2
        assert (paths(one), paths(worker)) == ([KEYS, RENDER, RENDER], [])

    async def test_one_that_fails_is_left_out_longer_each_time_and_workers_are_asked(self) -> None:
        async with engine() as dead, engine() as worker, upstream() as http:
            await dead.crash()
            render = Rendered(http, [worker], dedicated=[dead.url])
            for asked in range(3):
                assert (await render(ask())).rung is Rung.RENDER
                assert len(paths(worker)) == asked + 1
            assert render.failures(RenderFailure.FAILED) == 0
            await dead.start()
            render.clock.now += 60
            assert (await render(ask())).rung is Rung.RENDER
            assert (paths(dead), len(paths(worker))) == ([KEYS, RENDER], 3)

    async def test_one_that_does_not_know_the_model_is_left_out_for_that_model_alone(self) -> None:
        async with keyed_engine(model="other") as one, engine() as worker, upstream() as http:
            render = Rendered(http, [worker], dedicated=[one.url])
            for _ in range(2):
                assert (await render(ask())).rung is Rung.RENDER
            assert (paths(one), len(paths(worker))) == ([KEYS, RENDER], 2)
            render.facts = replace(render.facts, model="other")
            await render(ask())
            assert paths(one) == [KEYS, RENDER] * 2

    async def test_the_worker_has_the_last_word_about_a_refused_request(self) -> None:
        async with engine() as one, engine() as worker, upstream() as http:
            render = Rendered(http, [worker], dedicated=[one.url])
            one.fail_next(400, 2)
            assert (await render(ask())).rung is Rung.RENDER
        assert len(paths(worker)) == 1


def test_a_renderer_that_keeps_failing_is_left_out_longer_each_time() -> None:
    renderers = Renderers(["http://a"])
    now, pauses = 0.0, []
    for _ in range(6):
        renderers.failed("http://a", now)
        before = now
        while not renderers.next(now):
            now += 1
        pauses.append(now - before)
    assert pauses == [5, 10, 20, 40, 60, 60]
    renderers.answered("http://a")
    assert renderers.healthy("http://a", now)
