"""The routes under ``/v1/fleet``, vLLM's endpoint plugin: for the agent beside this engine, with the worker key."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, Final

import msgspec

from cachefleet_core.reports import Policy

from .asgi import HttpError, Receive, Request, Response, Scope, Send, error_response, json_response
from .engine import EngineCallError, EngineCalls
from .process import Process, this_process

log = logging.getLogger("vllm.cachefleet")

PREFIX: Final = "/v1/fleet"
MAX_POLICY_BYTES: Final = 64 * 1024

Handler = Callable[[Request], Awaitable[Response]]


class FleetRoutes:
    """What vLLM's ``vllm.endpoint_plugins`` group asks for."""

    name = "cachefleet"
    required_tasks = None

    def __init__(self) -> None:
        self._app = FleetApp(this_process())

    def attach_router(self, app: Any) -> None:
        app.mount(PREFIX, self._app)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ARG002 - vLLM's signature
        self._app.connect(engine_client)


class FleetApp:
    """The routes as an ASGI application."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._key = _worker_key(process)
        self._calls: EngineCalls | None = None
        self._handlers: dict[tuple[str, str], Handler] = {
            ("GET", "/capabilities"): self._capabilities,
            ("GET", "/stats"): self._stats,
            ("GET", "/audit"): self._audit,
            ("PUT", "/policy"): self._policy,
        }

    def connect(self, engine_client: Any) -> None:
        """The engine these routes speak for; None on a server without one."""
        if engine_client is not None:
            self._calls = EngineCalls(engine_client, timeout_seconds=self._process.settings.call_timeout_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        response = await self._answer(Request.of(scope, receive))
        await response.send(send)

    async def _answer(self, request: Request) -> Response:
        try:
            self._authorize(request)
            return await self._handlers.get((request.method, request.path), _not_found)(request)
        except HttpError as error:
            return error_response(error)
        except EngineCallError as error:
            return error_response(HttpError(503, "engine_unavailable", str(error)))
        except Exception as error:
            self._process.faults.counts["routes"] += 1
            log.exception("cachefleet: %s %s failed", request.method, request.path)
            return error_response(HttpError(500, "internal", type(error).__name__))

    def _authorize(self, request: Request) -> None:
        if not self._key:
            raise HttpError(403, "no_worker_key", "CACHEFLEET_WORKER_KEY_FILE names no key, so nothing opens this")
        bearer = request.headers.get(b"authorization", b"")
        given = request.headers.get(b"x-cachefleet-token") or bearer.partition(b" ")[2].strip()
        if not hmac.compare_digest(given, self._key):
            raise HttpError(403, "wrong_token", "this needs the worker key in X-Cachefleet-Token")

    def _engine(self) -> EngineCalls:
        if self._calls is None:
            raise HttpError(404, "no_engine", "this server has no engine")
        return self._calls

    async def _capabilities(self, _request: Request) -> Response:
        features = self._process.capabilities.document()
        ranks: dict[int, Any] = {}
        if self._calls is not None:
            ranks = await self._calls.all("describe")
            features += msgspec.convert(ranks[0].pop("features"), type(features), strict=False) if ranks else []
        return json_response(
            {"plugin": version("cachefleet"), "engine": _engine_version(), "features": features, "ranks": ranks}
        )

    async def _stats(self, _request: Request) -> Response:
        return json_response({"ranks": await self._engine().all("stats")})

    async def _audit(self, _request: Request) -> Response:
        return json_response({"ranks": await self._engine().all("audit")})

    async def _policy(self, request: Request) -> Response:
        body = await request.body(MAX_POLICY_BYTES)
        try:
            policy = msgspec.json.decode(body, type=Policy)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise HttpError(400, "bad_policy", str(error)) from None
        ranks = await self._engine().all("policy", msgspec.msgpack.encode(policy))
        return json_response({"generation": min(rank["generation"] for rank in ranks.values()), "ranks": ranks})


async def _not_found(request: Request) -> Response:
    raise HttpError(404, "not_found", f"there is no {request.method} {PREFIX}{request.path}")


def _worker_key(process: Process) -> bytes:
    try:
        return process.settings.worker_key()
    except OSError as error:
        log.error("cachefleet: worker key not readable, the routes stay shut: %s", error)  # noqa: TRY400
        return b""


def _engine_version() -> str:
    from vllm import __version__  # noqa: PLC0415 - vLLM is there when this runs

    return str(__version__)
