"""The guard on an application as vLLM's is built; a real vLLM's is in e2e/engine/test_plugin_routes.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from cachefleet_worker.plugin import access_guard, routes
from cachefleet_worker.plugin.plugin_process import Process
from cachefleet_worker.plugin.settings import PluginSettings
from tests.worker.plugin.asked import process

KEY = "worker-secret"
WORKER = {"Authorization": f"Bearer {KEY}"}
USER = {"Authorization": "Bearer a-users"}
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"]
CLOSED = ["/invocations", "/tokenize", "/pause", "/sleep", "/collective_rpc", "/server_info", "/load", "/ping", "/docs"]


async def everything(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"served {request.url.path}")


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("served")
    await socket.close()


@pytest.fixture
def own(tmp_path: Path) -> Process:
    (tmp_path / "key").write_text(KEY + "\n")
    return process(PluginSettings(worker_key_file=tmp_path / "key"))


def client(own: Process, monkeypatch: pytest.MonkeyPatch, *, root_path: str = "", api_key: Any = None) -> TestClient:
    """In the order of vLLM: routes, endpoint plugins, its own middleware. ``/metrics`` is a mounted application."""
    monkeypatch.setattr(routes, "this_process", lambda: own)
    app = FastAPI()
    app.root_path = root_path
    app.state.args = SimpleNamespace(api_key=api_key)
    app.mount("/metrics", everything_mounted)
    routes.FleetRoutes().attach_router(app)
    app.add_route("/{rest:path}", everything, methods=METHODS)
    app.router.routes.append(WebSocketRoute("/{rest:path}", echo))
    app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"])
    return TestClient(app)


async def everything_mounted(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("figures")(scope, receive, send)


def test_what_kubelet_and_prometheus_ask_is_open(own: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = client(own, monkeypatch)
    for path in ("/health", "/metrics", "/metrics?name=x"):
        for method in ("GET", "HEAD"):
            assert caller.request(method, path).status_code == 200, path
    assert own.capabilities.mode("guard") == "on"


@pytest.mark.parametrize("path", [*CLOSED, "/v1/models", "/v1/fleet/stats", "/", "/never-heard-of"])
def test_everything_else_needs_the_worker_key(own: Process, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    caller = client(own, monkeypatch)
    for method in METHODS:
        answer = caller.request(method, path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), method
        assert caller.request(method, path, headers=WORKER).status_code != 401, method
    assert caller.get(path, headers={"X-Cachefleet-Token": KEY}).status_code != 401


@pytest.mark.parametrize(
    "path",
    [
        *("/health/", "//health", "/HEALTH", "/health/../pause", "/health/x", "/metrics/", "/metrics/x", "/metricsx"),
        *("/health;x", "/%2e/health", "/health%2f..%2fpause", "/health%00", "/x/health", "/v1//"),
    ],
)
def test_other_spellings_of_what_is_open_are_not(own: Process, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    assert client(own, monkeypatch).get(path).status_code == 401


def test_what_is_open_is_open_for_reading(own: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = client(own, monkeypatch)
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert caller.request(method, "/health").status_code == 401, method


@pytest.mark.parametrize("path", ["/health", "/api/health"])
def test_below_a_root_path_what_is_routed_counts(own: Process, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    caller = client(own, monkeypatch, root_path="/api")
    assert caller.get(path).status_code == 200
    for other in ("/api/pause", "/pause", "/api", "/apihealth", "/api/api/health"):
        assert caller.get(other).status_code == 401, other
        assert caller.get(other, headers=WORKER).status_code == 200, other


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"X-Cachefleet-Token": ""},
        {"Cookie": KEY},
        USER,
    ],
)
def test_nothing_but_the_key_opens_it(own: Process, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]) -> None:
    assert client(own, monkeypatch).get("/pause", headers=headers).status_code == 401


@pytest.mark.parametrize("api_key", ["a-users", ["", "other", "a-users"]])
def test_vllms_own_keys_open_the_api_alone(own: Process, monkeypatch: pytest.MonkeyPatch, api_key: Any) -> None:
    caller = client(own, monkeypatch, api_key=api_key)
    for path in ("/v1/models", "/inference/v1/generate"):
        assert caller.get(path, headers=USER).status_code == 200
        assert caller.get(path).status_code == 401
    for path in (*CLOSED, "/v1", "/v1x/models", "//v1/models"):
        assert caller.get(path, headers=USER).status_code == 401, path
    assert caller.get("/v1/fleet/stats", headers=USER).json()["error"]["code"] == "wrong_token"


def test_vllms_key_may_come_by_its_environment(own: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "a-users")
    assert client(own, monkeypatch).get("/v1/models", headers=USER).status_code == 200


@pytest.mark.parametrize("path", ["/v1/realtime", "/health", "/metrics", "/x"])
def test_websockets_need_it_everywhere(own: Process, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    caller = client(own, monkeypatch)
    with pytest.raises(WebSocketDisconnect), caller.websocket_connect(path):
        pass
    if path != "/metrics":  # which is no WebSocket's
        with caller.websocket_connect(path, headers=WORKER) as socket:
            assert socket.receive_text() == "served"


def test_a_browser_may_still_ask_what_it_may_send(own: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"Origin": "http://x", "Access-Control-Request-Method": "POST"}
    answer = client(own, monkeypatch).options("/v1/chat/completions", headers=asked)
    assert (answer.status_code, answer.text) == (200, "OK")


@pytest.mark.parametrize("content", ["", None])
def test_a_key_that_cannot_be_read_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
    caller = client(process(PluginSettings(worker_key_file=tmp_path / "key")), monkeypatch, api_key=["a-users"])
    assert [caller.get(path, headers=USER).status_code for path in ("/health", "/v1/models", "/pause")] == [
        200,
        200,
        401,
    ]
    assert caller.get("/pause", headers={"Authorization": "Bearer "}).status_code == 401


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (PluginSettings(), "CACHEFLEET_WORKER_KEY_FILE names no key"),
        (PluginSettings(plugin_off=frozenset({"guard"})), "switched off by CACHEFLEET_PLUGIN_OFF"),
    ],
)
def test_without_a_key_configured_vllm_serves_as_stock(
    settings: PluginSettings, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = process(settings)
    assert client(own, monkeypatch).post("/invocations").status_code == 200
    (told,) = [each for each in own.capabilities.document() if each.feature == "guard"]
    assert (told.mode, told.reason) == ("off", reason)


def test_an_application_that_takes_no_middleware_is_told_and_keeps_its_routes(
    own: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "this_process", lambda: own)
    mounted: list[str] = []
    app = SimpleNamespace(state=SimpleNamespace(), mount=lambda path, _app: mounted.append(path))
    routes.FleetRoutes().attach_router(app)
    assert mounted == ["/v1/fleet"]
    (told,) = [each for each in own.capabilities.document() if each.feature == "guard"]
    assert (told.mode, told.reason) == ("off", "fault: AttributeError")


def test_keys_are_not_shown() -> None:
    assert KEY not in repr(access_guard.Keys(KEY.encode(), (KEY.encode(),)))


def test_a_users_key_loads_no_adapters(own: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = client(own, monkeypatch, api_key=["a-users"])
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        assert caller.post(path, headers=USER).status_code == 401
        assert caller.post(path, headers=WORKER).status_code == 200
    assert caller.post("/v1/chat/completions", headers=USER).status_code == 200
