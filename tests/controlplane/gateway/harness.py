"""A gateway in front of fake engines, listening on a real port; agents are played by ``report``."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from typing import Any, Protocol

import aiohttp
from msgspec.structs import replace

from cachefleet_controlplane.capacity.pool_reuse import PoolReuses
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.account.hot_observer import HotObserver
from cachefleet_controlplane.gateway.account.prompt_losses import PromptLosses
from cachefleet_controlplane.gateway.admit.passed_requests import OtherControlPlanes
from cachefleet_controlplane.gateway.admit.request_bodies import GatewayBounds, RequestBodies
from cachefleet_controlplane.gateway.admit.tenant_admission import AdmissionMiddleware
from cachefleet_controlplane.gateway.app import Gateway
from cachefleet_controlplane.gateway.batches.batch_routes import BatchRoutes
from cachefleet_controlplane.gateway.converse.certification.plain_render import PlainRenderer
from cachefleet_controlplane.gateway.converse.turns import Turns
from cachefleet_controlplane.gateway.handles.handles import Handles
from cachefleet_controlplane.gateway.handles.unseen_text import UnseenText
from cachefleet_controlplane.gateway.know.prompt_lookup import PromptLookup
from cachefleet_controlplane.gateway.know.render_cache import RenderCache
from cachefleet_controlplane.gateway.know.renderer import Renderer
from cachefleet_controlplane.gateway.know.text_keys import Texts
from cachefleet_controlplane.gateway.layers import GatewayParts
from cachefleet_controlplane.gateway.place.key_affinity import KeyAffinity
from cachefleet_controlplane.gateway.place.request_queue import Queue
from cachefleet_controlplane.gateway.responses_socket.socket_limits import SocketLimits
from cachefleet_controlplane.gateway.send.answers.system_fingerprints import Fingerprints
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.history.cache_history import CacheHistory
from cachefleet_controlplane.history.recorded_requests import RecordedRequests
from cachefleet_controlplane.hot_prefixes.tracker import HotPrefixes
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.inference_objectives import InferenceObjectives
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_controlplane.routing.decision import Knowledge
from cachefleet_controlplane.store.decision_log import LaterRecord
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.store.tenant_records import UsageRecord
from cachefleet_controlplane.tenants.budgets import Budgets
from cachefleet_controlplane.tenants.directory import Directory
from cachefleet_controlplane.tracing.tracer import Tracer
from cachefleet_controlplane.transport.client_websocket import MessageBounds, client_websocket
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.transport.native_server import NativeServer, ServerBounds
from cachefleet_controlplane.transport.served_tls import ServedTls
from cachefleet_controlplane.wire.cross_origin import AllowedOrigins
from cachefleet_controlplane.wiring.conversation_parts import rendered
from cachefleet_controlplane.wiring.gateway_parts import GatewayOptions, gateway_context, prompt_lookup, renderer_of
from cachefleet_core.block_keys import BlockKeyer, Namespace, pack_keys
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.pool.spec import PrefixCachePool, parse_pools
from cachefleet_core.report_frames import Hello, Phase, Snapshot, State, Stored
from cachefleet_core.tenancy import DEFAULT_TENANT, FleetKey, fleet_index_key, tenant_salt
from tests.controlplane.frames import sent
from tests.controlplane.waiting import until
from tests.fakes.engine import FakeEngine
from tests.fakes.loop_clock import clock as loop_time
from tests.reference.digest import Digest

MODEL = "fake"
BLOCK_SIZE = 16
POOL = "default/demo"
FLEET_KEY = FleetKey(bytes(range(32)))
WORKER_KEY = FLEET_KEY.worker_key(POOL)
INDEX_KEY = fleet_index_key(FLEET_KEY.index_key, "default", MODEL)
SALT = tenant_salt(FLEET_KEY.salt_key, DEFAULT_TENANT)
CONTRACT = IndexContract(weights=MODEL, tokenizer="sha256:aa", block_size=BLOCK_SIZE)

_POOL = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {{name: demo}}
spec:
  model: {{name: {model}, source: fake, weightsMiB: 1}}
  engine: {{image: fake, blockSize: {block_size}, maxModelLen: {max_model_len}}}
  device: {{resource: nvidia.com/gpu, memoryMiB: 8192, activationMiB: 1024, floorMiB: 1024}}
  tenancy: {{isolation: {isolation}}}
  admission: {admission}
  continuation: {continuation}
  prefixCache: {prefix_cache}
  pricing: {pricing}
"""


def pool(*, isolation: str = "PerTenant", model: str = MODEL, **fields: Any) -> PrefixCachePool:
    others = {
        "block_size": BLOCK_SIZE,
        "admission": "{}",
        "continuation": "{}",
        "max_model_len": 4096,
        "prefix_cache": "{}",
        "pricing": "{}",
    } | fields
    return _declared(_POOL.format(model=model, isolation=isolation, **others))


@cache
def _declared(text: str) -> PrefixCachePool:
    """Pools never change; reading one takes longer than most tests."""
    return parse_pools(text)[0]


def engine(**options: Any) -> FakeEngine:
    own: dict[str, Any] = {"model": MODEL, "api_key": WORKER_KEY, "block_size": BLOCK_SIZE, "natural_tokens": 6}
    return FakeEngine(**(own | options))


class Worker(Protocol):
    """Whatever the gateway can reach: a fake engine, a real one, a server of a test's own."""

    @property
    def url(self) -> str: ...


MakeTurns = Callable[[Fleet, Metrics, Renderer], Turns]


class _OneKey(Credentials):
    """Shows every worker the same key, whatever its pool."""

    def __init__(self, key: str) -> None:
        super().__init__(FLEET_KEY)
        self._key = key

    def of(self, url: str) -> str:
        return self._key


class Known:
    """A directory that a test says."""

    def __init__(self, directory: Directory | None = None) -> None:
        self.directory = directory or Directory()
        self.informed = asyncio.Event()
        self.informed.set()


class _Agent:
    def send(self, frame: object) -> None:
        pass

    def close(self, code: str, reason: str) -> None:
        pass


@dataclass
class Front:
    """The gateway and what a test looks at."""

    url: str
    gateway: Gateway
    fleet: Fleet
    metrics: Metrics
    http: aiohttp.ClientSession
    fingerprints: Fingerprints
    queue: Queue
    records: list[DecisionRecord] = field(default_factory=list)
    engines: Sequence[Worker] = ()
    server: NativeServer | None = None
    history: CacheHistory = field(default_factory=CacheHistory)
    recorded: RecordedRequests = field(default_factory=RecordedRequests)
    prompts: PromptLosses = field(default_factory=PromptLosses)
    lookup: PromptLookup | None = None
    affinity: KeyAffinity | None = None
    unseen: UnseenText | None = None

    def forget_fingerprints(self) -> None:
        for worker in self.engines:
            self.fingerprints.forget(worker.url)

    def name(self, number: int) -> str:
        return f"demo-{number}"

    def endpoints(self, *, ready: bool = True) -> tuple[WorkerEndpoint, ...]:
        return tuple(WorkerEndpoint(self.name(i), e.url, ready) for i, e in enumerate(self.engines))

    def load(self, number: int) -> dict[str, Any]:
        """What engine ``number`` does, and its blocks."""
        engine = self.engines[number]
        assert isinstance(engine, FakeEngine)
        scheduler, blocks = engine.worker.scheduler, engine.worker.pool
        return {
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "blocks_total": blocks.num_blocks,
            "blocks_free": blocks.free,
            "blocks_idle": blocks.idle,
        }

    def report(self, number: int, *, salt: str = SALT, said: Mapping[str, Any] | None = None, **load: Any) -> None:
        """What an agent beside engine ``number`` would say now: who it is, all it holds, its ``load`` if any.

        ``said``: what its Hello has otherwise.
        """
        engine = self.engines[number]
        assert isinstance(engine, FakeEngine)
        hello = Hello(worker=self.name(number), pool=POOL, epoch=f"e{number}", endpoint=engine.url, contract=CONTRACT)
        report(self.fleet, engine, replace(hello, **(said or {})), salt=salt, **load)

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
        async with self.http.post(self.url + path, data=io.BytesIO(data), headers=given) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.read()

    async def chat(self, text: str, **changes: Any) -> tuple[int, dict[str, str], bytes]:
        return await self.post("/v1/chat/completions", chat(text, **changes))

    async def settled(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """As ``post``, and waits for the request's record: the native transport ends a stream before that is made."""
        ended = len(self.records)
        answer = await self.post(path, body, **headers)
        await until(lambda: len(self.records) > ended)
        return answer

    async def settled_chat(self, text: str, **changes: Any) -> tuple[int, dict[str, str], bytes]:
        return await self.settled("/v1/chat/completions", chat(text, **changes))


def report(fleet: Fleet, engine: FakeEngine, hello: Hello, *, salt: str = SALT, **load: Any) -> None:
    """A connection of the engine's agent: ``hello``, all that the engine holds of ``salt``, and its load."""
    connection, held = fleet.connect(_Agent()), engine.held_links() if engine.running else []
    fleet.hello(connection, hello)
    keyer = BlockKeyer(INDEX_KEY, Namespace(CONTRACT.fingerprint(), salt), BLOCK_SIZE)
    chains = [keyer.keys(link.prefix()) for link in held if link.lineage()[0].salt == salt]
    digest = Digest()
    for key in {key for chain in chains for key in chain}:
        digest.add((key,))
    stored = tuple(Stored(0, pack_keys(chain)) for chain in chains if chain)
    fleet.receive(connection, sent(Snapshot(sequence=0, part=0, last=True, chains=stored)))
    keys = len({key for chain in chains for key in chain})
    load = dict[str, Any](running=0, waiting=0, phase=Phase.READY) | load
    fleet.receive(connection, State(sequence=0, digest=digest.value, held=keys, **load))


def chat(text: str, **changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4} | changes


def _server(
    completions: Completions, gateway: Gateway, bounds: GatewayBounds, drain_seconds: float, tls: ServedTls | None
) -> NativeServer:
    messages = MessageBounds(seconds=bounds.body_seconds, stall_seconds=bounds.stall_seconds)
    served = ServerBounds(
        head_seconds=30,
        drain_seconds=drain_seconds,
        send_seconds=bounds.send_seconds,
        websocket_bytes=bounds.body_bytes,
        websocket=client_websocket(messages),
        tls=tls,
    )
    return NativeServer(gateway, completions, host="127.0.0.1", port=0, bounds=served)


def _upstream(completions: Completions, idle_seconds: float) -> Upstream:
    return Upstream(completions, connect_seconds=1, idle_seconds=idle_seconds)


def _unseen(stack: AsyncExitStack, fleet: Fleet, upstream: Upstream, credentials: Credentials) -> UnseenText:
    plain = PlainRenderer(upstream, credentials, seconds=30)
    unseen = UnseenText(partial(rendered, fleet, plain), fleet.render_facts)
    stack.callback(unseen.close)
    return unseen


def _keep(records: list[DecisionRecord], settled: Metrics | None, record: LaterRecord) -> None:
    records.append(record.made())
    if settled is not None:  # the use of each request by itself
        settled.registry.settle()


@asynccontextmanager
async def front(
    engines: Sequence[Worker],
    *,
    isolation: str = "PerTenant",
    model: str = MODEL,
    key: str = WORKER_KEY,
    ready: bool = True,
    idle_seconds: float = 60,
    render_seconds: float = 30,
    max_attempts: int = 3,
    fallbacks: int = 2,
    queue_requests: int = 8,
    admission: str = "{}",
    max_model_len: int = 4096,
    continuation: str = "{}",
    prefix_cache: str = "{}",
    pricing: str = "{}",
    hot: HotPrefixes | None = None,
    turns: MakeTurns | None = None,
    clock: Callable[[], float] = loop_time,
    texts: bool = False,
    knowledge: Knowledge = Knowledge.EXACT,
    render_cache: RenderCache | None = None,
    bounds: GatewayBounds | None = None,
    known: Known | None = None,
    used: Callable[[UsageRecord], None] | None = None,
    budgets: Budgets | None = None,
    handles: Callable[[Fleet, Metrics], Handles] | None = None,
    sockets: SocketLimits | None = None,
    drain_seconds: float = 1,
    tracer: Tracer | None = None,
    tls: ServedTls | None = None,
    objectives: InferenceObjectives | None = None,
    others: OtherControlPlanes | None = None,
    reuses: PoolReuses | None = None,
    origins: Sequence[str] = (),
    access_log: bool = False,
    batches: Callable[[RequestBodies], BatchRoutes] | None = None,
) -> AsyncIterator[Front]:
    """A gateway before ``engines``, which the caller runs."""
    async with AsyncExitStack() as stack:
        metrics, bounds = Metrics(), bounds or GatewayBounds(body_bytes=1 << 20, body_seconds=30, requests=100)
        fleet = Fleet(BlockIndex(), index_key=FLEET_KEY.index_key, texts=BlockIndex() if texts else None, clock=clock)
        completions = await stack.enter_async_context(Completions())
        upstream = await stack.enter_async_context(_upstream(completions, idle_seconds))
        options = GatewayOptions(
            render_seconds=render_seconds,
            queue_requests=queue_requests,
            max_attempts=max_attempts,
            fallbacks=fallbacks,
            knowledge=knowledge,
            render_cache=render_cache,
            texts=Texts(b"t" * 32) if texts else None,
            clock=loop_time,
            tracer=tracer,
        )
        context = gateway_context(fleet, upstream, (credentials := _OneKey(key)), metrics, options)
        renderer = renderer_of(context, options)
        records: list[DecisionRecord] = []
        continued = turns(fleet, metrics, renderer) if turns else None
        lookup = prompt_lookup(
            context,
            renderer,
            options,
            salt_key=FLEET_KEY.salt_key,
            handles=handles(fleet, metrics) if handles else None,
            unseen=_unseen(stack, fleet, upstream, credentials),
        )
        parts = GatewayParts(
            context=context,
            lookup=lookup,
            admission=AdmissionMiddleware(
                known or Known(),
                hash_key=FLEET_KEY.api_key_hash_key,
                metrics=metrics,
                record=used or (lambda _: None),
                budgets=budgets,
                clock=loop_time,
            ),
            record=partial(_keep, records, metrics if used else None),
            bounds=bounds,
            turns=continued,
            objectives=objectives,
            history=(history := CacheHistory()),
            recorded=(recorded := RecordedRequests(1 << 20)),
            prompts=(prompts := PromptLosses()),
            others=others or OtherControlPlanes(),
            batches=batches,
            reuses=reuses,
            hot=HotObserver(hot, lookup, fleet, metrics) if hot is not None else None,
        )
        gateway = Gateway(
            parts,
            sockets=sockets,
            new_id=map("d{}".format, count(1)).__next__,
            origins=AllowedOrigins(origins),
            access_log=access_log,
        )
        server = _server(completions, gateway, bounds, drain_seconds, tls)
        serving = asyncio.create_task(server.serve())
        url = f"{server.origin.rpartition(':')[0]}:{await server.listening()}"
        http = await stack.enter_async_context(aiohttp.ClientSession())
        made = Front(
            *(url, gateway, fleet, metrics, http, context.fingerprints, context.queue, records, engines, server),
            history=history,
            recorded=recorded,
            prompts=prompts,
            lookup=lookup,
            affinity=context.affinity,
            unseen=lookup._unseen,
        )
        views = [
            PoolView(
                pool(
                    isolation=isolation,
                    model=model,
                    admission=admission,
                    max_model_len=max_model_len,
                    continuation=continuation,
                    prefix_cache=prefix_cache,
                    pricing=pricing,
                ),
                made.endpoints(ready=ready),
            )
        ]
        credentials.update(views)
        fleet.update_pools(views)
        try:
            yield made
        finally:
            await http.close()
            server.stop()
            await serving
        assert (fleet.view().inflight_requests, len(context.queue)) == (0, 0), "something is left in flight"


def events(body: bytes) -> list[bytes]:
    return [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]


async def direct(engine: Worker, path: str, body: Any, *, key: str = WORKER_KEY) -> tuple[int, bytes]:
    """The same request to the engine itself."""
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession() as http, http.post(engine.url + path, data=data, headers=headers) as answer:
        return answer.status, await answer.read()
