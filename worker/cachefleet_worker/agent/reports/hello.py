"""The Hello frame of an engine's rank: pure."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import version
from typing import Final

from cachefleet_core.engine.engine_configuration import differences
from cachefleet_core.hit_rule import membership
from cachefleet_core.index_contract import IndexContract, RenderProfile, key_version
from cachefleet_core.pool.adapter_reports import MAX_ADAPTERS
from cachefleet_core.report_frames import MAX_ENDPOINTS, Hello
from cachefleet_worker.agent.engines.engine_errors import EngineError
from cachefleet_worker.agent.engines.engine_facts import EngineFacts, RankFacts
from cachefleet_worker.agent.settings import AgentSettings

AGENT_VERSION: Final = version("cachefleet")
MAX_FEATURES: Final = 48
"""A Hello has room for 64 capabilities."""
MAX_NAME: Final = 253


def build_hello(settings: AgentSettings, facts: EngineFacts, rank: int, *, epoch: str) -> Hello:
    """The Hello frame of a rank. EngineError where the engine has no such rank."""
    known = facts.ranks.get(rank)
    if known is None:
        raise EngineError(f"the engine has no data-parallel rank {rank}")
    members = membership(known.groups, known.block_size)
    return Hello(
        worker=settings.worker,
        pool=settings.pool,
        rank=rank,
        epoch=epoch,
        endpoint=settings.endpoint or settings.engine_url,
        agent=settings.agent_endpoint,
        agent_version=AGENT_VERSION,
        engine_version=facts.version,
        contract=_contract(settings, facts, known),
        profile=RenderProfile(
            renderer=facts.engine,
            renderer_version=facts.version,
            template=facts.template,
            tool_parser=settings.tool_parser,
            reasoning_parser=settings.reasoning_parser,
        ),
        capabilities=(*known.transport, *facts.features[:MAX_FEATURES]),
        block_bytes=known.block_bytes,
        blocks_total=known.blocks,
        max_model_len=facts.max_model_len,
        max_batched_tokens=settings.max_batched_tokens,
        adapters=fitting(facts.adapters),
        configuration=differences(settings.asked, known.configuration),
        endpoints=fitting_paths(facts.endpoints),
        rule=members.rule,
        shares=True,
        not_indexed=members.unknown,
    )


def _contract(settings: AgentSettings, facts: EngineFacts, rank: RankFacts) -> IndexContract:
    lookahead = lookahead_of(facts, rank)
    return IndexContract(
        weights=settings.weights or facts.root,
        revision=settings.revision,
        tokenizer=facts.tokenizer,
        block_size=rank.block_size,
        key_version=key_version(lookahead),
        lookahead=lookahead,
    )


def lookahead_of(facts: EngineFacts, rank: RankFacts) -> int:
    """Tokens after a block that its hash in the engine covers: as the engine tells, else as events showed."""
    return facts.lookahead if rank.lookahead is None else rank.lookahead


def fitting_paths(paths: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The paths; None for more, or longer ones, than a frame has room for."""
    fit = paths is not None and len(paths) <= MAX_ENDPOINTS and all(0 < len(path) <= MAX_NAME for path in paths)
    return paths if fit else None


def fitting(adapters: Collection[str]) -> tuple[str, ...] | None:
    """Names of adapters; None for more, or longer ones, than a frame has room for."""
    fit = len(adapters) <= MAX_ADAPTERS and all(0 < len(name) <= MAX_NAME for name in adapters)
    return tuple(adapters) if fit else None
