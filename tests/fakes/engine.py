"""A fake vLLM worker: protocol-true outside, no model inside.

Blocks, events, replay, answers, metrics and refusals behave as in vLLM 0.32 (``e2e/engine/test_fake_conformance.py``
holds it against the real one); only the tokens mean nothing. In a test::

    async with FakeEngine(num_blocks=100, api_key="k") as engine:
        ...  # engine.url, engine.events_endpoint, engine.replay_endpoint

As a process, for benches: ``python -m tests.fakes.engine --port 9001 --num-blocks 5000``; it prints one line of JSON
when it is ready.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from aiohttp import web

from cachefleet_core.block_keys import NO_PARENT, BlockKey, BlockKeyer
from cachefleet_core.engine.held_requests import HOLD_HEADER, NOT_HELD
from cachefleet_runtime.tls import server_context
from cachefleet_worker.plugin.asgi import HttpError
from tests.fakes.adapters import Adapters
from tests.fakes.chain import Link, external_hash
from tests.fakes.conversations import refused, tell
from tests.fakes.failures import Refusal, internal
from tests.fakes.fleet import FleetRoutes
from tests.fakes.holding import INNER, first_part, hold
from tests.fakes.kv_events import Offloaded
from tests.fakes.named_requests import counting
from tests.fakes.options import EngineOptions
from tests.fakes.replaying import recorded
from tests.fakes.routes import Routes, refuse, reply
from tests.fakes.tokenizer import load_tokenizer
from tests.fakes.worker import Worker

_OPEN: Final = ("/health", "/metrics")
"""What the plugin's guard lets anybody read."""
_GUARDED: Final = ("/v1", "/v2", "/inference", "/cohere")
_MAX_BODY: Final = 64 * 1024 * 1024
_TURNS_TO_ACCEPT: Final = 4
"""Turns of the event loop after which a connection that it was accepting is made."""
Handler = Callable[[web.Request], Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that reached the engine, refused ones included."""

    at: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class FakeEngine:
    """One worker. Options are the fields of EngineOptions; addresses stay the same over ``crash`` and ``restart``."""

    def __init__(self, options: EngineOptions | None = None, **changes: Any) -> None:
        options = replace(options or EngineOptions(), **changes)
        self._ports = [_Port(options.host, port) for port in (options.port, options.events_port, options.replay_port)]
        http, events, replay = (port.number for port in self._ports)
        self.options = replace(options, port=http, events_port=events, replay_port=replay)
        self.url = f"{'https' if options.tls else 'http'}://{options.host}:{http}"
        self.events_endpoint = f"tcp://{options.host}:{events}"
        self.replay_endpoint = f"tcp://{options.host}:{replay}"
        self.requests: deque[Seen] = deque(maxlen=options.remembered_requests)
        self.tokenizer = load_tokenizer(options.tokenizer, multibyte=options.multibyte)
        self._failures: deque[int] = deque()
        self._runner: web.AppRunner | None = None
        self._worker: Worker | None = None
        self._routes: Routes | None = None
        self._fleet: FleetRoutes | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.crash()
        for port in self._ports:
            port.release()

    @property
    def worker(self) -> Worker:
        """The engine's inside. RuntimeError while it is down."""
        if self._worker is None:
            raise RuntimeError("the fake engine is not running")
        return self._worker

    @property
    def plugin(self) -> FleetRoutes:
        """The worker plugin's side of it. RuntimeError where it has none."""
        if self._fleet is None:
            raise RuntimeError("this fake engine has no plugin")
        return self._fleet

    @property
    def adapters(self) -> Adapters:
        """Its adapters. RuntimeError while it is down."""
        if self._routes is None:
            raise RuntimeError("the fake engine is not running")
        return self._routes.adapters

    @property
    def running(self) -> bool:
        return self._worker is not None

    async def start(self) -> None:
        """Start empty: no blocks, sequence 0, new start time. Nothing happens if it runs."""
        if self._worker is not None:
            return
        worker = Worker(self.options, self.tokenizer)
        if self.options.events:
            await worker.publisher.open(self.events_endpoint, self.replay_endpoint)
        self._routes = Routes(worker, self.events_endpoint, self.replay_endpoint)
        self._fleet = FleetRoutes(worker, self.tokenizer, reply) if self.options.plugin else None
        self._runner = web.AppRunner(
            self._app(self._routes), handler_cancellation=True, access_log=None, shutdown_timeout=1.0
        )
        await self._runner.setup()
        tls = server_context(self.options.tls) if self.options.tls else None
        await web.SockSite(self._runner, self._ports[0].listener(), ssl_context=tls).start()
        self._worker = worker
        worker.start()

    async def crash(self) -> None:
        """Die as by SIGKILL: every connection is reset, nothing is said. Nothing happens if it is down."""
        worker, self._worker = self._worker, None
        runner, self._runner = self._runner, None
        if worker is None or runner is None:
            return
        # First, as with a process: who notices the end finds nobody listening.
        await _close([server for site in runner.sites if (server := getattr(site, "_server", None)) is not None])
        if runner.server is not None:
            for connection in runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
        await runner.cleanup()
        await worker.stop()

    @property
    def connections(self) -> int:
        """HTTP connections that are open to it."""
        return 0 if self._runner is None or self._runner.server is None else len(self._runner.server.connections)

    async def restart(self) -> None:
        await self.crash()
        await self.start()

    def hang(self) -> None:
        """Stop answering, with connections open, as under SIGSTOP."""
        self.worker.going.clear()
        self.worker.publisher.hold()

    def resume(self) -> None:
        self.worker.going.set()
        self.worker.publisher.unhold()

    def sleep(self, level: int = 1, *, mode: str = "abort") -> None:
        """Fall asleep, as by ``POST /sleep``: nothing is stepped, health checks are answered, the cache is dropped."""
        self.worker.metrics.slept(level)
        self.worker.suspend("asleep" if level else "paused", mode=mode, clear=level > 0)

    def wake_up(self) -> None:
        """As ``POST /wake_up``."""
        self.worker.metrics.woke()
        self.worker.serve()

    def pause(self, *, mode: str = "abort", clear: bool = True) -> None:
        """As ``POST /pause``, of which metrics say nothing."""
        self.worker.suspend("paused", mode=mode, clear=clear)

    def unpause(self) -> None:
        """As ``POST /resume``."""
        self.worker.serve()

    def drop_events(self, count: int, *, lose: bool = False) -> None:
        """Keep the next batches off the wire; their numbers are used up. ``lose``: out of the replay buffer too."""
        self.worker.publisher.drop(count, lose=lose)

    def slow_events(self, seconds: float) -> None:
        """Hold each batch back so long before it is published; 0 for none."""
        self.worker.publisher.delay = seconds

    def fail_next(self, status: int = 500, count: int = 1) -> None:
        """Answer the next requests to guarded routes with an error."""
        self._failures.extend([status] * count)

    def hand_back(self, *after: int) -> None:
        """Hand the next marked requests back after so many tokens each, as the plugin does with preempted ones.

        RuntimeError where it has none.
        """
        _ = self.plugin
        self.worker.scheduler.hand_backs.extend(after)

    def gate(self, threshold: float) -> None:
        """The policy's threshold, as an agent puts it."""
        self.worker.scheduler.threshold = threshold

    def cut_next_stream(self, after: int) -> None:
        """Reset the connection of the next stream after so many of its pieces; 0: before the first."""
        assert self._routes is not None
        self._routes.cut_after = after

    def end_badly(self, *, errors: int = 0, corrupted: int = 0) -> None:
        """Count requests that ended with an internal error, or whose logits were not numbers (``nan_metric``)."""
        self.worker.metrics.failed(errors=errors, corrupted=corrupted)

    def reset_prefix_cache(self) -> bool:
        """As the route of that name: False while blocks are in use. The event goes out with the next step's."""
        return self.worker.pool.clear()

    def offload(self) -> None:
        """Announce that all cached blocks are in the host's memory, too; nothing is ever loaded from there."""
        self.worker.publisher.publish([Offloaded(link) for link in self.held_links()])

    def has_host_room(self, blocks: int) -> None:
        """Say that the host's memory has room for so many blocks, as from 0.33 on."""
        self.worker.metrics.has_host_room(blocks)

    def load(self, tokens: int, seconds: float) -> None:
        """Count tokens as loaded from the host's memory; none are."""
        self.worker.metrics.loaded(tokens, seconds)

    def held_links(self) -> list[Link]:
        """The distinct blocks cached now; they know their tokens, salt and ancestors."""
        return self.worker.pool.held()

    def held(self) -> set[int | bytes]:
        """The hashes, as events show them, of the blocks cached now."""
        as_int = self.options.event_int_hashes
        return {external_hash(link.digest, as_int=as_int) for link in self.held_links()}

    def held_chains(self) -> set[tuple[str, tuple[int, ...]]]:
        """For each cached block its salt and all tokens up to its end."""
        return {(link.lineage()[0].salt, link.prefix()) for link in self.held_links()}

    def held_keys(self, keyer: Callable[[str], BlockKeyer]) -> set[BlockKey]:
        """What an index should hold of this engine, given the keyer of each salt."""
        known: dict[Link, BlockKey] = {}
        return {_key(link, keyer, known) for link in self.held_links()}

    def _app(self, routes: Routes) -> web.Application:
        app = web.Application(middlewares=[self._middleware], client_max_size=_MAX_BODY)
        app.add_routes(routes.table())
        if self._fleet is not None:
            app.add_routes(self._fleet.table())
        app.on_response_prepare.append(_sign)
        app.on_response_prepare.append(tell)
        if self.options.tls:
            app.on_response_prepare.append(_end)
        return app

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        await self.worker.going.wait()
        held = self._fleet is not None and HOLD_HEADER in request.headers
        body = await (first_part(request) if held else request.read())
        if INNER not in request.headers:
            self.requests.append(Seen(time.time(), request.method, request.path, dict(request.headers), body))
        guarded = request.path.startswith(_GUARDED)
        closed = self.options.plugin and request.path not in _OPEN
        if (guarded or closed) and not self._authorised(request):
            return reply({"error": "Unauthorized"}, 401)
        try:
            if guarded and self._failures:
                raise internal(self._failures.popleft())
            if self._fleet is None:
                answer: web.StreamResponse = await handler(request)
                return answer
            with counting(self._fleet.named, request):
                return await self._behind_plugin(self._fleet, request, handler, body)
        except Refusal as refusal:
            return refuse(refusal)
        except HttpError as error:
            return reply(*refused(error))
        except web.HTTPException as error:
            return reply({"detail": error.reason}, error.status)

    async def _behind_plugin(
        self, plugin: FleetRoutes, request: web.Request, handler: Handler, body: bytes
    ) -> web.StreamResponse:
        if HOLD_HEADER in request.headers and not plugin.holds:
            raise HttpError(501, NOT_HELD, "requests are not held any more")
        whole = plugin.conversations.whole(request, body)
        if HOLD_HEADER in request.headers:
            document = lambda asked, _: plugin.document(asked, request, whole)  # noqa: E731
            return await hold(request, body, self.url, document, plugin.late_members)
        with recorded(request, whole, on="answer_replay" not in plugin.lacking) as plain:
            request._read_bytes = plain
            return plugin.conversations.referred(request, await handler(request))

    def _authorised(self, request: web.Request) -> bool:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        keys = {self.options.api_key, self.options.worker_key or self.options.api_key}
        return not self.options.api_key or (scheme.lower() == "bearer" and key in keys)


class _Port:
    """A port kept for one engine over its restarts: bound without listening, so others get a refusal, not the port."""

    def __init__(self, host: str, number: int) -> None:
        self._host = host
        self._keeper = self._bind(number)
        self.number: int = self._keeper.getsockname()[1]

    def listener(self) -> socket.socket:
        return self._bind(self.number)

    def release(self) -> None:
        self._keeper.close()

    def _bind(self, number: int) -> socket.socket:
        keeper = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind((self._host, number))
        return keeper


def _key(link: Link, keyer: Callable[[str], BlockKeyer], known: dict[Link, BlockKey]) -> BlockKey:
    lineage = link.lineage()
    computer = keyer(lineage[0].salt)
    parent = NO_PARENT
    for position, one in enumerate(lineage):
        if one not in known:
            known[one] = computer.keys((*one.tokens, *one.ahead), parent, position)[0]
        parent = known[one]
    return known[link]


async def _close(servers: Sequence[asyncio.Server]) -> None:
    """Stop listening, once what is being accepted is: a closed server would leave that open, and never read it."""
    for listening in [listening for server in servers for listening in server.sockets]:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(_TURNS_TO_ACCEPT):
        await asyncio.sleep(0)
    for server in servers:
        server.close()


async def _sign(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "uvicorn"


async def _end(_: web.Request, response: web.StreamResponse) -> None:
    response.force_close()


if __name__ == "__main__":
    from tests.fakes.process import main

    main()
