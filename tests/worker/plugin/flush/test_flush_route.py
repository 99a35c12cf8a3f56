"""``POST /v1/fleet/flush`` on a made-up engine; a real one is in e2e/engine/test_plugin_flush.py."""

from __future__ import annotations

from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cachefleet_core.block_identity.media import Placed
from cachefleet_core.engine.cache_flush import FlushAnswer, FlushAsk, Flushed
from cachefleet_worker.plugin import capability_document, routes
from cachefleet_worker.plugin.asgi import HttpError
from cachefleet_worker.plugin.engine_calls import EngineCalls
from cachefleet_worker.plugin.flush.flush_route import flushed, read_ask
from cachefleet_worker.plugin.flush.selection import Beginning, Selector
from cachefleet_worker.plugin.keys.render import Prompt, Rendered
from cachefleet_worker.plugin.routes import FleetApp
from cachefleet_worker.plugin.settings import PluginSettings
from tests.worker.plugin.asked import Answer, EngineCore, ask, process

KEY = "worker-secret"
DIGEST = "a" * 32


class Source:
    """Renders every body as told."""

    def __init__(self, *prompts: Prompt) -> None:
        self.prompts = prompts
        self.bodies: list[Any] = []

    async def render(self, body: bytes) -> Rendered:
        self.bodies.append(msgspec.json.decode(body))
        return Rendered(self.prompts, "", "")


@pytest.fixture
def core() -> EngineCore:
    return EngineCore({"flush": Flushed(3, 48, 1), "describe": {"features": []}}, ranks=2)


@pytest.fixture
async def app(tmp_path: Path, core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> FleetApp:
    monkeypatch.setattr(routes, "unmet", lambda _feature: "")
    monkeypatch.setattr(capability_document, "engine_version", lambda: "0.32.0")  # without an import of vLLM
    (tmp_path / "key").write_text(KEY)
    app = FleetApp(process(PluginSettings(worker_key_file=tmp_path / "key")))
    await app.connect(core.client(), SimpleNamespace())
    core.calls.clear()
    return app


async def post(app: FleetApp, body: object) -> Answer:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return await ask(app, "POST", "/v1/fleet/flush", body=data, headers={"X-Cachefleet-Token": KEY})


def selected(core: EngineCore) -> list[Selector]:
    assert {name for _, name, _ in core.calls} == {"flush"}
    return [msgspec.msgpack.decode(payload, type=Selector) for _, _, payload in core.calls]


async def asked(core: EngineCore, prompt: Any = None, source: Any = None, **fields: Any) -> FlushAnswer:
    calls = EngineCalls(core.client(), timeout_seconds=5)
    return await flushed(FlushAsk(prompt=prompt, **fields), calls, source, block_size=4)


async def test_every_rank_is_asked_and_its_answer_told(app: FleetApp, core: EngineCore) -> None:
    answer = await post(app, {"salts": [DIGEST], "dry_run": True})
    assert answer.status == 200, answer.content
    told = {"blocks": 3, "tokens": 48, "busy": 1, "reason": ""}
    assert answer.json == {"ranks": {"0": told, "1": told}}
    assert selected(core) == [Selector(salts=frozenset({DIGEST}), dry_run=True)] * 2


async def test_one_rank_alone(app: FleetApp, core: EngineCore) -> None:
    assert list((await post(app, {"everything": True, "rank": 1})).json["ranks"]) == ["1"]
    assert [rank for rank, _, _ in core.calls] == [1]
    assert selected(core)[0].everything
    answer = await post(app, {"everything": True, "rank": 2})
    assert (answer.status, answer.code) == (503, "engine_unavailable")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "or everything"),
        ({"dry_run": True, "rank": 0}, "or everything"),
        ({"salts": []}, "salts"),
        ({"salts": ["a salt"]}, "salts"),
        ({"tenant": "acme"}, "tenant"),
        ({"prompt": "text"}, "prompt"),
        (b"{", "truncated"),
        (b"\xff", ""),
    ],
)
async def test_what_is_no_flush_is_refused_with_the_field(
    app: FleetApp, core: EngineCore, body: object, said: str
) -> None:
    answer = await post(app, body)
    assert (answer.status, answer.code) == (400, "bad_flush")
    assert said in answer.json["error"]["message"]
    assert core.calls == []


async def test_a_prompt_needs_a_server_that_renders(app: FleetApp, core: EngineCore) -> None:
    answer = await post(app, {"prompt": {"prompt": "x"}})
    assert (answer.status, answer.code) == (503, "keys_off")
    assert core.calls == []


async def test_an_engine_that_cannot_says_why(app: FleetApp, core: EngineCore) -> None:
    core.answers["flush"] = Flushed(reason="the budget is off")
    answer = await post(app, {"everything": True})
    assert (answer.status, answer.code) == (503, "flush_off")
    assert answer.json["error"]["message"] == "the budget is off"


async def test_prompts_are_rendered_and_named_by_their_tokens_and_media(core: EngineCore) -> None:
    media = (Placed("cat", 1, 2),)
    source = Source(Prompt([1, 2, 3, 4, 5], 5, media), Prompt([7] * 9, 8))
    body = {"prompt": "two of them", "model": "m"}
    answer = await asked(core, body, source, salts=(DIGEST,))
    assert answer.ranks[0] == Flushed(3, 48, 1)
    assert source.bodies == [body]
    assert selected(core)[0].beginnings == (
        Beginning(array("I", [1, 2, 3, 4, 5]).tobytes(), (("cat", 1, 2),)),
        Beginning(array("I", [7] * 8).tobytes()),
    )


@pytest.mark.parametrize(
    ("prompt", "code"), [(Prompt([1, 2, 3], 3), "short_prompt"), (Prompt([-1] * 4, 4), "bad_token_ids")]
)
async def test_a_prompt_that_names_no_block_flushes_nothing(core: EngineCore, prompt: Prompt, code: str) -> None:
    with pytest.raises(HttpError) as caught:
        await asked(core, {"prompt": "x"}, Source(prompt))
    assert caught.value.code == code
    assert core.calls == []


def test_an_ask_reads_back() -> None:
    ask = FlushAsk(salts=(DIGEST,), adapter="french", prompt={"messages": []}, rank=3, dry_run=True)
    assert read_ask(msgspec.json.encode(ask)) == ask
