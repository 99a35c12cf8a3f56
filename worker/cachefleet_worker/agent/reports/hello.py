"""The Hello frame of an engine's rank, and the endpoints of its event stream: pure."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import version
from typing import Final

from cachefleet_core.engine.engine_configuration import differences
from cachefleet_core.hit_rule import CacheGroup, membership
from cachefleet_core.index_contract import IndexContract, RenderProfile, key_version
from cachefleet_core.pool.adapter_reports import MAX_ADAPTERS
from cachefleet_core.report_frames import Capability, Hello
from cachefleet_worker.agent.engines.vllm.events.source import Endpoints, endpoints_for, offset
from cachefleet_worker.agent.engines.vllm.http_client import EngineError, EngineFacts
from cachefleet_worker.agent.engines.vllm.plugin_api import FleetFacts
from cachefleet_worker.agent.engines.vllm.real_configuration import real_configuration
from cachefleet_worker.agent.settings import AgentSettings

AGENT_VERSION: Final = version("cachefleet")
MAX_FEATURES: Final = 48
"""A Hello has room for 64 capabilities."""
MAX_NAME: Final = 253
_NO_PLUGIN: Final = (
    Capability(
        feature="plugin",
        mode="off",
        reason="the engine runs without the worker plugin, or with VLLM_USE_RUST_FRONTEND, which has no routes of it",
    ),
    Capability(feature="frontend", mode="off"),
    Capability(feature="snapshot", mode="off", reason="stock engine: blocks stored before the replay are unseen"),
)


def endpoints_of(settings: AgentSettings, facts: EngineFacts, rank: int) -> Endpoints | None:
    """A rank's sockets: as the engine reports, else as configured; None where it publishes no events."""
    if facts.sources is not None:
        source = facts.sources.get(rank)
        return (
            endpoints_for(source.endpoint, source.replay, settings.engine_url) if source and source.endpoint else None
        )
    if not settings.events_endpoint:
        return None
    return Endpoints(offset(settings.events_endpoint, rank), offset(settings.replay_endpoint, rank))


def build_hello(settings: AgentSettings, facts: EngineFacts, rank: int, *, epoch: str) -> Hello:
    """The Hello frame of a rank. EngineError where the engine has no such rank."""
    cache = facts.caches.get(rank)
    if cache is None:
        raise EngineError(f"the engine has no data-parallel rank {rank}")
    fleet = facts.fleet.ranks.get(rank) if facts.fleet else None
    members, lookahead = membership(groups_of(facts, rank), cache.block_size), lookahead_of(facts, rank)
    return Hello(
        worker=settings.worker,
        pool=settings.pool,
        rank=rank,
        epoch=epoch,
        endpoint=settings.endpoint or settings.engine_url,
        agent=settings.agent_endpoint,
        agent_version=AGENT_VERSION,
        engine_version=facts.version,
        contract=IndexContract(
            weights=settings.weights or facts.root,
            revision=settings.revision,
            tokenizer=facts.tokenizer,
            block_size=cache.block_size,
            key_version=key_version(lookahead),
            lookahead=lookahead,
        ),
        profile=RenderProfile(
            renderer="vllm",
            renderer_version=facts.version,
            template=facts.template,
            tool_parser=settings.tool_parser,
            reasoning_parser=settings.reasoning_parser,
        ),
        capabilities=capabilities(endpoints_of(settings, facts, rank), facts.fleet),
        block_bytes=fleet.block_bytes if fleet else 0,
        blocks_total=cache.blocks,
        max_model_len=facts.max_model_len,
        max_batched_tokens=settings.max_batched_tokens,
        adapters=fitting(facts.adapters),
        configuration=differences(settings.asked, real_configuration(facts, rank)),
        rule=members.rule,
        not_indexed=members.unknown,
    )


def groups_of(facts: EngineFacts, rank: int) -> tuple[CacheGroup, ...]:
    """A rank's KV cache groups, as the plugin tells them; none of a stock engine."""
    known = facts.fleet.ranks.get(rank) if facts.fleet else None
    return known.groups if known else ()


def lookahead_of(facts: EngineFacts, rank: int) -> int:
    """Tokens after a block that its hash in the engine covers: as the plugin tells, else as events showed."""
    known = facts.fleet.ranks.get(rank) if facts.fleet else None
    return known.lookahead if known else facts.lookahead


def fitting(adapters: Collection[str]) -> tuple[str, ...] | None:
    """Names of adapters; None for more, or longer ones, than a frame has room for."""
    fit = len(adapters) <= MAX_ADAPTERS and all(0 < len(name) <= MAX_NAME for name in adapters)
    return tuple(adapters) if fit else None


def capabilities(endpoints: Endpoints | None, fleet: FleetFacts | None) -> tuple[Capability, ...]:
    """The engine's capabilities, feature by feature; those of the plugin where there is one."""
    plugin = fleet.features[:MAX_FEATURES] if fleet else _NO_PLUGIN
    return (*_transport(endpoints), *plugin)


def _transport(endpoints: Endpoints | None) -> tuple[Capability, ...]:
    if endpoints is None:
        return (Capability(feature="events", mode="off", reason="the engine publishes no block events"),)
    return (
        Capability(feature="events", mode="zmq"),
        Capability(feature="replay", mode="zmq" if endpoints.replay else "off"),
    )


def devices_of(facts: EngineFacts) -> int:
    """Devices that each hold a part of every token (tensor parallelism); 1 where the engine does not tell."""
    return (facts.fleet.server.tensor_parallel_size if facts.fleet else None) or 1
