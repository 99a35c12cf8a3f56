"""The routes under ``/v1/fleet``, a vLLM endpoint plugin: for this engine's agent, authorised by the worker key.

A server without an engine (``vllm launch render``) answers capabilities, stats and keys.
"""

from __future__ import annotations

import hmac
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from cachefleet_core.engine.answer_replay import FEATURE as REPLAY
from cachefleet_core.engine.left_answers import FEATURE as LEFT_ANSWERS
from cachefleet_core.engine.left_answers import LeftAsk
from cachefleet_core.report_frames import Policy
from cachefleet_worker.plugin import access_guard
from cachefleet_worker.plugin.adapters import adapter_fetching
from cachefleet_worker.plugin.asgi import (
    HttpError,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    error_response,
    json_response,
)
from cachefleet_worker.plugin.capabilities import FRONTEND, summary
from cachefleet_worker.plugin.capability_document import Server, document
from cachefleet_worker.plugin.compat import unmet
from cachefleet_worker.plugin.conversations import conversation_middleware
from cachefleet_worker.plugin.conversations.exchange import FEATURE as CONVERSATIONS
from cachefleet_worker.plugin.conversations.turn_store import TurnStore
from cachefleet_worker.plugin.engine_calls import EngineCallError, EngineCalls, StockEngineError
from cachefleet_worker.plugin.flush.flush_route import flushed, read_ask
from cachefleet_worker.plugin.keys import held_requests
from cachefleet_worker.plugin.keys.key_service import KeyService
from cachefleet_worker.plugin.keys.render import RefusedError
from cachefleet_worker.plugin.plugin_process import NO_ENGINE, NO_WORKER_KEY, Process, this_process
from cachefleet_worker.plugin.prompts.held_prompt import FEATURE as HELD
from cachefleet_worker.plugin.replay import replay_hooks, replay_middleware
from cachefleet_worker.plugin.snapshot.snapshot_relay import snapshot_response
from cachefleet_worker.plugin.usage import left_answers, message_start

log = logging.getLogger("vllm.cachefleet")

PREFIX: Final = "/v1/fleet"
FEATURE: Final = "routes"
MAX_POLICY_BYTES: Final = 64 * 1024
RETRY: Final = ((b"retry-after", b"1"),)

Handler = Callable[[Request], Awaitable[Response]]


class FleetRoutes:
    """Entry point of vLLM's ``vllm.endpoint_plugins`` group."""

    name = "cachefleet"
    required_tasks = None

    def __init__(self) -> None:
        self._process = this_process()
        self._app = FleetApp(self._process)

    def attach_router(self, app: Any) -> None:
        """Guard the application and mount the routes; vLLM calls it while it builds the application."""
        with self._process.faults.guard(CONVERSATIONS):
            conversation_middleware.install(app, self._process)
        with self._process.faults.guard(REPLAY):
            replay_middleware.attach(app, self._process)
        with self._process.faults.guard(HELD):
            held_requests.install(app, self._process, lambda: self._app.keys)
        with self._process.faults.guard(LEFT_ANSWERS):
            left_answers.attach(app, self._process)
        with self._process.faults.guard(access_guard.FEATURE):
            access_guard.install(app, self._process)
        with self._process.faults.guard(FEATURE):
            if off := self._process.settings.switched_off(FEATURE):
                self._process.faults.off(FEATURE, off)
                return
            app.mount(PREFIX, self._app)
            self._process.capabilities.add(FEATURE, "on")
            self._process.capabilities.add(FRONTEND, "python")

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ARG002 - vLLM's signature
        """Connect the routes to the engine; vLLM calls it before it serves."""
        with self._process.faults.guard(adapter_fetching.FEATURE):
            adapter_fetching.install(state, self._process)
        with self._process.faults.guard(message_start.FEATURE):
            message_start.install(self._process, has_engine=engine_client is not None)
        with self._process.faults.guard(LEFT_ANSWERS):
            left_answers.install(self._process, has_engine=engine_client is not None)
        with self._process.faults.guard(REPLAY):
            replay_hooks.install(self._process, has_engine=engine_client is not None)
        with self._process.faults.guard(FEATURE):
            await self._app.connect(engine_client, state)


@dataclass(frozen=True, slots=True)
class Route:
    """One path: its handlers by method, and the largest number of its requests in flight."""

    handlers: dict[str, Handler]
    at_once: int = 16


class FleetApp:
    """The routes as an ASGI application."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._key = process.worker_key()
        self._calls: EngineCalls | None = None
        self._no_engine = NO_ENGINE
        self._keys: KeyService | None = None
        self._server = Server()
        self._under_way: Counter[str] = Counter()
        self._routes = {
            "/capabilities": Route({"GET": self._capabilities}),
            "/stats": Route({"GET": self._stats}),
            "/policy": Route({"PUT": self._policy}),
            "/audit": Route({"GET": self._audit}, at_once=1),
            "/snapshot": Route({"GET": self._snapshot}, at_once=8),
            "/conversations": Route({"DELETE": self._forget}),
            "/flush": Route({"POST": self._flush}, at_once=2),
            "/hand_back": Route({"POST": self._hand_back}, at_once=1),
            "/left": Route({"POST": self._left}, at_once=256),
            "/keys": Route({"POST": self._ask_keys}, at_once=process.settings.keys_at_once),
        }

    @property
    def keys(self) -> KeyService | None:
        """What gives block keys; None before the server is started up."""
        return self._keys

    async def connect(self, engine_client: Any, state: Any) -> None:
        """Set the engine that these routes speak for; None on a server without one."""
        if missing := unmet(FEATURE):
            self._process.capabilities.add(FEATURE, "on", missing)
            self._no_engine = missing
        elif engine_client is not None:
            self._calls = EngineCalls(engine_client, timeout_seconds=self._process.settings.call_timeout_seconds)
        self._server = Server.of(state, has_engine=engine_client is not None)
        self._keys = KeyService(self._process, state, block_size=self._server.block_size)
        await self._announce()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        access_guard.check_passed(scope, self._process)
        request = Request.of(scope, receive, prefix=PREFIX)
        try:
            with self._seat(request) as handler:
                response = await self._answer(handler, request)
                await response.send(send)
        except HttpError as error:
            await error_response(error).send(send)
        except RefusedError as error:
            if isinstance(error.answer, Exception):
                raise error.answer from None  # vLLM's exception handlers answer it
            await error.answer.send(send)
        except Exception as error:  # noqa: BLE001 - in a stream that has begun: counted, and left without its end
            self._process.faults.tell(request.path, error)

    @contextmanager
    def _seat(self, request: Request) -> Iterator[Handler]:
        """The handler of an authorised request, counted as in flight meanwhile. HttpError."""
        self._authorize(request)
        route = self._routes.get(request.path)
        if route is None:
            raise HttpError(404, "not_found", f"there is no {PREFIX}{request.path[:64]}")
        handler = route.handlers.get(request.method)
        if handler is None:
            allowed = ", ".join(route.handlers)
            raise HttpError(405, "method", f"{request.path} takes {allowed}", ((b"allow", allowed.encode()),))
        if self._under_way[request.path] >= route.at_once:
            raise HttpError(429, "busy", f"{route.at_once} requests to {request.path} are under way", RETRY)
        self._under_way[request.path] += 1
        try:
            yield handler
        finally:
            self._under_way[request.path] -= 1

    async def _answer(self, handler: Handler, request: Request) -> Response:
        try:
            return await handler(request)
        except (HttpError, RefusedError):
            raise
        except EngineCallError as error:
            raise HttpError(503, "engine_unavailable", str(error)) from error
        except Exception as error:
            self._process.faults.tell(request.path, error)
            raise HttpError(500, "internal", type(error).__name__) from error

    def _authorize(self, request: Request) -> None:
        if not self._key:
            raise HttpError(403, "no_worker_key", f"{NO_WORKER_KEY}, so nothing opens this")
        bearer = request.headers.get(b"authorization", b"")
        given = request.headers.get(b"x-cachefleet-token") or bearer.partition(b" ")[2].strip()
        if not hmac.compare_digest(given, self._key):
            raise HttpError(403, "wrong_token", "this needs the worker key in X-Cachefleet-Token")

    def _engine(self) -> EngineCalls:
        if self._calls is None:
            raise HttpError(404, "no_engine", self._no_engine)
        return self._calls

    async def _capabilities(self, _request: Request) -> Response:
        return json_response(document(self._process, self._server, await self._described()))

    async def _described(self) -> dict[int, dict[str, Any]] | str:
        """Each engine's description by rank, or the reason why there is none."""
        if self._calls is None:
            return self._no_engine
        try:
            return await self._calls.all("describe")
        except StockEngineError as error:
            return str(error)

    async def _stats(self, _request: Request) -> Response:
        cache = self._process.parts.get("tokens")
        return json_response(
            {
                "ranks": await self._calls.all("stats") if self._calls else {},
                "tokens": cache.stats() if cache else {},
                "keys": self._keys.stats() if self._keys else {},
                "conversations": turns.stats() if (turns := self._turns) else {},
                "faults": dict(self._process.faults.counts),
            }
        )

    @property
    def _turns(self) -> TurnStore | None:
        return self._process.parts.get(CONVERSATIONS)

    async def _forget(self, _request: Request) -> Response:
        """End every conversation: the cache that they were kept for was cleared."""
        return json_response({"turns": self._turns.clear() if self._turns else 0})

    async def _audit(self, _request: Request) -> Response:
        return json_response({"ranks": await self._engine().all("audit")})

    async def _snapshot(self, request: Request) -> Response:
        seconds = self._process.settings.snapshot_timeout_seconds
        return await snapshot_response(self._engine(), request.query, timeout_seconds=seconds)

    async def _ask_keys(self, request: Request) -> Response:
        if self._keys is None:
            raise HttpError(503, "keys_off", "block keys are off: the server is not started up")
        body = await self._body(request, self._process.settings.max_body_bytes)
        return await self._keys.answer(request.query, body)

    async def _flush(self, request: Request) -> Response:
        ask, calls = read_ask(await self._body(request, self._process.settings.max_body_bytes)), self._engine()
        source = self._keys.source if self._keys else None
        return json_response(await flushed(ask, calls, source, block_size=self._server.block_size or 1))

    async def _hand_back(self, _request: Request) -> Response:
        return json_response({"ranks": await self._engine().all("hand_back")})

    async def _left(self, request: Request) -> Response:
        """What was made of a request whose client has left."""
        known: left_answers.NamedRequests | None = self._process.parts.get(LEFT_ANSWERS)
        try:
            ask = msgspec.json.decode(await self._body(request, MAX_POLICY_BYTES), type=LeftAsk)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HttpError(400, "bad_ask", str(error)) from None
        counts = await known.counts(ask.name.encode()) if known else None
        if counts is None:
            raise HttpError(404, "not_found", "no request of this name has ended here lately")
        return json_response(counts)

    async def _policy(self, request: Request) -> Response:
        try:
            policy = msgspec.json.decode(await self._body(request, MAX_POLICY_BYTES), type=Policy)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HttpError(400, "bad_policy", str(error)) from None
        ranks = await self._engine().all("policy", msgspec.msgpack.encode(policy))
        generation = min(rank["generation"] for rank in ranks.values())
        if self._turns and generation == policy.generation:  # an older one changes nothing
            self._turns.resize(policy.max_entries)
        return json_response({"generation": generation, "ranks": ranks})

    async def _body(self, request: Request, limit: int) -> bytes:
        return await request.body(limit, seconds=self._process.settings.body_timeout_seconds)

    async def _announce(self) -> None:
        """Log one line at startup: what this server and its engines can do."""
        try:
            described = await self._described()
        except EngineCallError as error:
            described = str(error)
        told = document(self._process, self._server, described)
        log.info("cachefleet %s on vLLM %s: %s", told["plugin"], told["engine"], summary(told["features"]))
