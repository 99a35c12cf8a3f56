"""The routes on a made-up engine; real ones are in e2e/engine/test_plugin_routes.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cachefleet_core.engine.engine_arguments import FLEET_ROUTES
from cachefleet_core.report_frames import Capability, Policy
from cachefleet_worker.plugin import capability_document, routes
from cachefleet_worker.plugin.asgi import Response
from cachefleet_worker.plugin.keys.render import RefusedError
from cachefleet_worker.plugin.routes import FleetApp, FleetRoutes
from cachefleet_worker.plugin.settings import PluginSettings
from tests.worker.plugin.asked import Answer, EngineCore, Sent, ask, process
from tests.worker.plugin.conversations.test_turn_store import store, turn

KEY = "worker-secret"
HEADERS = {"X-Cachefleet-Token": KEY}
POLICY = Policy(pool="a/b", generation=3, threshold=0.5)
DESCRIBED = {
    "rank": 0,
    "boot": "b" * 32,
    "block_bytes": 16,
    "blocks_total": 64,
    "block_size": 32,
    "features": [Capability(feature="gate", mode="in_loop")],
}


@pytest.fixture(autouse=True)
def _version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability_document, "engine_version", lambda: "0.32.0")
    monkeypatch.setattr(routes, "unmet", lambda _feature: "")


@pytest.fixture
def settings(tmp_path: Path) -> PluginSettings:
    (tmp_path / "key").write_text(KEY)
    return PluginSettings(worker_key_file=tmp_path / "key")


@pytest.fixture
def core() -> EngineCore:
    return EngineCore({"describe": DESCRIBED, "stats": {"running": 1}, "audit": {"ledger_missing": 0}})


@pytest.fixture
async def app(settings: PluginSettings, core: EngineCore) -> FleetApp:
    return await made(settings, core.client())


async def made(settings: PluginSettings, client: Any) -> FleetApp:
    app = FleetApp(process(settings))
    await app.connect(client, SimpleNamespace())
    return app


async def get(app: FleetApp, path: str, **headers: str) -> Answer:
    return await ask(app, "GET", f"/v1/fleet{path}", headers=headers or HEADERS)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-cachefleet-token": KEY},
        {"authorization": f"Bearer {KEY}"},
        {"authorization": "Bearer the-users", "x-cachefleet-token": KEY},
    ],
)
async def test_the_worker_key_opens_the_routes(app: FleetApp, headers: dict[str, str]) -> None:
    assert (await get(app, "/stats", **headers)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"x-none": "1"},
        {"authorization": "Bearer the-users"},
        {"authorization": KEY},
        {"authorization": "Bearer"},
        {"x-cachefleet-token": ""},
        {"x-cachefleet-token": KEY[:-1]},
        {"x-cachefleet-token": "the-users", "authorization": f"Bearer {KEY}"},
    ],
)
async def test_nothing_else_does_and_it_tells_nothing(app: FleetApp, core: EngineCore, headers: dict[str, str]) -> None:
    core.calls.clear()
    for path in ("/stats", "/no-such-thing"):
        answer = await get(app, path, **headers)
        assert (answer.status, answer.code) == (403, "wrong_token")
    assert core.calls == []


@pytest.mark.parametrize("file", [None, Path("/missing/key"), Path("/dev/null")])
async def test_without_a_key_nothing_opens_them(core: EngineCore, file: Path | None) -> None:
    app = await made(PluginSettings(worker_key_file=file), core.client())
    for headers in ({"x-cachefleet-token": ""}, {"authorization": "Bearer "}, {"x-cachefleet-token": "x"}):
        assert (await get(app, "/stats", **headers)).code == "no_worker_key"


async def test_what_is_not_there_and_what_is_not_taken(app: FleetApp) -> None:
    for path in ("", "/", "/nothing", "/stats/", "/capabilities/x"):
        assert (await get(app, path)).code == "not_found", path
    answer = await ask(app, "DELETE", "/v1/fleet/policy", headers=HEADERS)
    assert (answer.status, answer.headers[b"allow"]) == (405, b"PUT")


async def test_a_websocket_is_closed(app: FleetApp) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await app({"type": "websocket", "path": "/v1/fleet/stats"}, Sent([]).receive, send)
    assert sent == ["websocket.close"]


async def test_capabilities_are_those_of_all_processes(settings: PluginSettings, core: EngineCore) -> None:
    core.ranks = 2

    async def describe(rank: int) -> bytes:
        mode = Capability(feature="budget", mode="off" if rank else "blocks", reason="why" if rank else "")
        return msgspec.msgpack.encode(DESCRIBED | {"rank": rank, "features": [*DESCRIBED["features"], mode]})  # type: ignore[misc]

    core.answers["describe"] = describe
    app = await made(settings, core.client())
    app._process.capabilities.add("tokens", "cache")
    told = (await get(app, "/capabilities")).json
    assert (told["engine"], told["note"]) == ("0.32.0", "")
    modes = {each["feature"]: (each["mode"], each["reason"]) for each in told["features"]}
    assert modes["tokens"] == ("cache", "")
    assert modes["gate"] == ("in_loop", "")
    assert modes["budget"] == ("off", "why")
    assert modes["snapshot"] == ("off", "not told by this engine")
    assert modes["keys"] == ("off", "CACHEFLEET_INDEX_KEY_FILE names no key")
    assert sorted(told["ranks"]) == ["0", "1"]
    assert told["ranks"]["1"] == {key: value for key, value in DESCRIBED.items() if key != "features"} | {"rank": 1}


async def test_facts_of_the_configuration(settings: PluginSettings, core: EngineCore) -> None:
    config = SimpleNamespace(
        model_config=SimpleNamespace(get_vocab_size=lambda: 2048, max_model_len=1024),
        cache_config=SimpleNamespace(enable_prefix_caching=False, block_size=32),
        parallel_config=SimpleNamespace(data_parallel_size=2, tensor_parallel_size=4),
        kv_events_config=SimpleNamespace(enable_kv_cache_events=True, publisher="zmq", endpoint="ipc:///run/events"),
    )
    app = FleetApp(process(settings))
    await app.connect(core.client(), SimpleNamespace(vllm_config=config))
    told = (await get(app, "/capabilities")).json
    assert (told["vocab_size"], told["max_model_len"], told["block_size"]) == (2048, 1024, 32)
    assert (told["prefix_caching"], told["data_parallel_size"], told["tensor_parallel_size"]) == (False, 2, 4)
    assert (told["kv_events"], told["events_endpoint"]) == (True, "ipc:///run/events")
    assert (await get(await made(settings, core.client()), "/capabilities")).json["vocab_size"] is None


@pytest.mark.parametrize("events", [None, SimpleNamespace(enable_kv_cache_events=False, publisher="null")])
async def test_an_engine_without_events_says_so(settings: PluginSettings, core: EngineCore, events: Any) -> None:
    app = FleetApp(process(settings))
    await app.connect(core.client(), SimpleNamespace(vllm_config=SimpleNamespace(kv_events_config=events)))
    told = (await get(app, "/capabilities")).json
    assert (told["kv_events"], told["events_endpoint"]) == (False, None)


async def test_without_an_engine_only_what_the_server_was_told_counts(settings: PluginSettings) -> None:
    config = SimpleNamespace(
        model_config=SimpleNamespace(get_vocab_size=lambda: 2048, max_model_len=1024),
        cache_config=SimpleNamespace(enable_prefix_caching=True, block_size=128),
        parallel_config=SimpleNamespace(data_parallel_size=1),
    )
    for size in (32, None):
        state = SimpleNamespace(vllm_config=config, args=SimpleNamespace(block_size=size, enable_prefix_caching=None))
        app = FleetApp(process(settings))
        await app.connect(None, state)
        told = (await get(app, "/capabilities")).json
        assert (told["vocab_size"], told["max_model_len"], told["block_size"]) == (2048, 1024, size)
        assert told["prefix_caching"] is told["data_parallel_size"] is None


async def test_features_on_an_untested_version_say_so(
    app: FleetApp, monkeypatch: pytest.MonkeyPatch, settings: PluginSettings
) -> None:
    monkeypatch.setattr(capability_document, "engine_version", lambda: "0.41.0")
    told = (await get(app, "/capabilities")).json
    assert told["note"].startswith("untested version 0.41.0")
    reasons = {each["feature"]: each["reason"] for each in told["features"]}
    assert reasons["gate"] == told["note"]
    assert reasons["budget"] == "not told by this engine", "off for its own reason"


async def test_an_engine_with_the_stock_scheduler_has_no_features_and_serves(
    settings: PluginSettings, core: EngineCore
) -> None:
    core.answers = dict.fromkeys(core.answers, b"")
    app = await made(settings, core.client())
    told = (await get(app, "/capabilities")).json
    assert told["ranks"] == {}
    gate = next(each for each in told["features"] if each["feature"] == "gate")
    assert (gate["mode"], gate["reason"]) == ("off", "this engine runs without the cachefleet scheduler")
    assert (await get(app, "/stats")).code == "engine_unavailable"


async def test_a_server_without_an_engine_tells_what_it_has(settings: PluginSettings) -> None:
    app = await made(settings, None)
    told = (await get(app, "/capabilities")).json
    assert {each["reason"] for each in told["features"] if each["feature"] == "gate"} == {"this server has no engine"}
    assert (await get(app, "/stats")).json["ranks"] == {}
    assert (await get(app, "/audit")).code == (await get(app, "/snapshot")).code == "no_engine"


async def test_an_engine_that_cannot_be_asked_is_as_none(
    settings: PluginSettings, core: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "unmet", lambda feature: f"vLLM 9 has no way in for {feature}")
    app = await made(settings, core.client())
    assert core.calls == []
    told = (await get(app, "/capabilities")).json
    reasons = {each["feature"]: each["reason"] for each in told["features"]}
    assert reasons["gate"] == reasons["routes"] == "vLLM 9 has no way in for routes"
    assert (await get(app, "/audit")).code == "no_engine"


async def test_the_start_is_told_in_one_line(
    settings: PluginSettings, core: EngineCore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await made(settings, core.client())
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("cachefleet 0.1.0 on vLLM 0.32.0: gate in_loop; off: keys (CACHEFLEET_INDEX_KEY_FILE")


async def test_a_policy_reaches_every_rank(settings: PluginSettings, core: EngineCore) -> None:
    async def put(rank: int) -> bytes:
        return msgspec.msgpack.encode({"generation": 3 + rank})

    core.ranks, core.answers["policy"] = 2, put
    app = await made(settings, core.client())
    body = msgspec.json.encode(POLICY)
    answer = await ask(app, "PUT", "/v1/fleet/policy", body=body, headers=HEADERS)
    assert answer.json == {"generation": 3, "ranks": {"0": {"generation": 3}, "1": {"generation": 4}}}
    calls = [(rank, payload) for rank, name, payload in core.calls if name == "policy"]
    assert calls == [(rank, msgspec.msgpack.encode(POLICY)) for rank in (0, 1)]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff", b'{"type":"policy","pool":"p"}', b"[" * 5000]
    + [
        b'{"type":"policy","pool":"p","generation":1,"threshold":%s}' % value
        for value in (b"1.5", b"-1", b"true", b"1e309")
    ],
)
async def test_a_bad_policy_changes_nothing(app: FleetApp, core: EngineCore, body: bytes) -> None:
    core.calls.clear()
    answer = await ask(app, "PUT", "/v1/fleet/policy", body=body, headers=HEADERS)
    assert (answer.status, answer.code) == (400, "bad_policy")
    assert core.calls == []


async def test_bodies_are_bounded(app: FleetApp, settings: PluginSettings) -> None:
    big = await ask(app, "PUT", "/v1/fleet/policy", body=b" " * (routes.MAX_POLICY_BYTES + 1), headers=HEADERS)
    assert (big.status, big.code) == (413, "too_large")
    small = FleetApp(process(replace(settings, max_body_bytes=10, body_timeout_seconds=0.05)))
    await small.connect(None, SimpleNamespace())
    assert (await ask(small, "POST", "/v1/fleet/keys", body=b" " * 11, headers=HEADERS)).status == 413
    slow = Sent([b"1"], then=lambda: asyncio.sleep(60))
    assert (await ask(small, "POST", "/v1/fleet/keys", body=slow, headers=HEADERS)).status == 408
    assert not +small._under_way, "nothing is left counted"


async def test_expensive_calls_are_bounded_and_others_go_on(app: FleetApp, core: EngineCore) -> None:
    going = asyncio.Event()

    async def audit(_rank: int) -> bytes:
        await going.wait()
        return msgspec.msgpack.encode({})

    core.answers["audit"] = audit
    first = asyncio.create_task(get(app, "/audit"))
    await asyncio.sleep(0)
    second = await get(app, "/audit")
    assert (second.status, second.code, second.headers[b"retry-after"]) == (429, "busy", b"1")
    assert (await get(app, "/stats")).status == 200
    going.set()
    assert (await first).status == 200
    assert (await get(app, "/audit")).status == 200


async def test_an_engine_that_fails_or_hangs_is_said_to_be_unavailable(
    settings: PluginSettings, core: EngineCore
) -> None:
    app = await made(replace(settings, call_timeout_seconds=0.05), core.client())

    async def dead(_rank: int) -> bytes:
        raise RuntimeError("the engine is dead")

    async def silent(_rank: int) -> bytes:
        await asyncio.sleep(60)
        return b""

    for call, words in ((dead, "the engine is dead"), (silent, "the engine did not answer within 0.05 s")):
        core.answers["stats"] = call
        answer = await get(app, "/stats")
        assert (answer.status, answer.code) == (503, "engine_unavailable")
        assert answer.json["error"]["message"] == words


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/capabilities"),
        ("GET", "/stats"),
        ("GET", "/audit"),
        ("GET", "/snapshot"),
        ("PUT", "/policy"),
        ("POST", "/keys"),
    ],
)
async def test_a_fault_in_a_route_is_an_answer_is_counted_and_told_once(
    app: FleetApp, method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_request: object) -> Response:
        raise ZeroDivisionError("secret")

    intact = app._routes[path]
    app._routes[path] = replace(intact, handlers={method: broken})
    for _ in range(3):
        answer = await ask(app, method, f"/v1/fleet{path}", headers=HEADERS)
        assert (answer.status, answer.code) == (500, "internal")
        assert b"secret" not in answer.content
    assert app._process.faults.counts[path] == 3
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    app._routes[path] = intact
    assert (await get(app, "/stats")).json["faults"] == {path: 3}


async def test_a_stream_that_breaks_is_left_without_its_end(app: FleetApp) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"some"
        raise ZeroDivisionError

    async def broken(_request: object) -> Response:
        return Response(parts())

    app._routes["/snapshot"] = replace(app._routes["/snapshot"], handlers={"GET": broken})
    answer = await get(app, "/snapshot")
    assert (answer.content, answer.whole) == (b"some", False)
    assert app._process.faults.counts == {"/snapshot": 1}
    assert not +app._under_way


async def test_what_vllm_refuses_it_refuses_itself(app: FleetApp) -> None:
    answers: list[Response | Exception] = [Response(b"{}", 404), ValueError("in vLLM's words")]

    async def refused(_request: object) -> Response:
        raise RefusedError(answers.pop(0))

    app._routes["/keys"] = replace(app._routes["/keys"], handlers={"POST": refused})
    assert (await ask(app, "POST", "/v1/fleet/keys", headers=HEADERS)).status == 404
    with pytest.raises(ValueError, match="in vLLM's words"):
        await ask(app, "POST", "/v1/fleet/keys", headers=HEADERS)
    assert not app._process.faults.counts


class Mounts:
    """The part of a FastAPI application that is used."""

    def __init__(self) -> None:
        self.mounted: list[str] = []

    def mount(self, path: str, _app: object) -> None:
        self.mounted.append(path)


async def test_what_comes_past_the_guard_is_told(app: FleetApp) -> None:
    app._process.capabilities.add("guard", "on")
    told = {each["feature"]: each for each in (await get(app, "/capabilities")).json["features"]}
    assert (told["guard"]["mode"], told["guard"]["reason"]) == ("off", "requests come past it in this vLLM")


@pytest.mark.parametrize("off", [frozenset(), frozenset({"routes"})])
def test_routes_switched_off_are_not_there(off: frozenset[str], monkeypatch: pytest.MonkeyPatch) -> None:
    own = process(PluginSettings(plugin_off=off))
    monkeypatch.setattr(routes, "this_process", lambda: own)
    app = Mounts()
    FleetRoutes().attach_router(app)
    assert app.mounted == ([] if off else ["/v1/fleet"])
    assert own.capabilities.mode("routes") == ("off" if off else "on")


async def test_a_fault_while_the_server_starts_stays_with_the_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    own = process(
        PluginSettings(plugin_off=frozenset({"message_start", "left_answers", "answer_replay"}))
    )  # which import vLLM
    monkeypatch.setattr(routes, "this_process", lambda: own)
    plugin = FleetRoutes()
    plugin.attach_router(None)
    await plugin.init_state(SimpleNamespace(), SimpleNamespace(), None)
    assert own.faults.counts["routes"] == 2
    assert {each.feature: each.reason for each in own.capabilities.document()}["routes"] == "fault: AttributeError"


async def test_conversations_are_bounded_by_the_policy_and_ended(settings: PluginSettings, core: EngineCore) -> None:
    core.answers["policy"] = {"generation": 3}
    app = await made(settings, core.client())
    assert (await get(app, "/stats")).json["conversations"] == {}
    assert (await ask(app, "DELETE", "/v1/fleet/conversations", headers=HEADERS)).json == {"turns": 0}
    turns = app._process.parts["conversations"] = store()
    for added in (b"1", b"2", b"3"):
        turns.keep(turn(added))
    fewer = msgspec.structs.replace(POLICY, max_entries=2)
    for policy, left in ((POLICY, 3), (fewer, 2), (msgspec.structs.replace(POLICY, generation=2, max_entries=0), 2)):
        await ask(app, "PUT", "/v1/fleet/policy", body=msgspec.json.encode(policy), headers=HEADERS)
        assert (await get(app, "/stats")).json["conversations"]["turns"] == left
    assert (await ask(app, "DELETE", "/v1/fleet/conversations", headers=HEADERS)).json == {"turns": 2}
    assert (await get(app, "/stats")).json["conversations"]["turns"] == 0


def test_engines_are_told_of_every_route_that_is_not_to_be_logged(app: FleetApp) -> None:
    assert {f"/{name}" for name in FLEET_ROUTES} == set(app._routes)
