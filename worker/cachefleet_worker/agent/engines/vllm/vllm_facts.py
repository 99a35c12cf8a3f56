"""The facts of one vLLM process, from its own answers: pure."""

from __future__ import annotations

from typing import Final

from cachefleet_core.report_frames import Capability
from cachefleet_worker.agent.engines.engine_facts import EngineFacts, RankFacts
from cachefleet_worker.agent.engines.vllm.endpoints import endpoints_of, transport
from cachefleet_worker.agent.engines.vllm.plugin_api import PluginRank
from cachefleet_worker.agent.engines.vllm.real_configuration import real_configuration
from cachefleet_worker.agent.engines.vllm.vllm_readings import Readings
from cachefleet_worker.agent.settings import AgentSettings

NAME: Final = "vllm"
_NO_PLUGIN: Final = (
    Capability(
        feature="plugin",
        mode="off",
        reason="the engine runs without the worker plugin, or with VLLM_USE_RUST_FRONTEND, which has no routes of it",
    ),
    Capability(feature="frontend", mode="off"),
    Capability(feature="snapshot", mode="off", reason="stock engine: blocks stored before the replay are unseen"),
)
_UNNAMED: Final = PluginRank("-")
"""Of a rank that the plugin does not name."""


def engine_facts(settings: AgentSettings, readings: Readings) -> EngineFacts:
    """The facts that the rest of the agent goes by."""
    models, fleet = readings.models, readings.fleet
    return EngineFacts(
        engine=NAME,
        version=readings.version,
        model=models.model,
        root=models.root,
        max_model_len=models.max_model_len,
        tokenizer=readings.tokenizer,
        template=readings.template,
        process=readings.process,
        ranks={rank: _rank_facts(settings, readings, rank) for rank in readings.caches},
        adapters=models.adapters,
        endpoints=readings.endpoints,
        features=fleet.features if fleet else _NO_PLUGIN,
        plugin=fleet.plugin if fleet else "",
        takes_policy=fleet is not None,
        devices=(fleet.server.tensor_parallel_size if fleet else None) or 1,
    )


def _rank_facts(settings: AgentSettings, readings: Readings, rank: int) -> RankFacts:
    cache, fleet = readings.caches[rank], readings.fleet
    known = fleet.ranks.get(rank) if fleet else None
    named = known or _UNNAMED
    return RankFacts(
        block_size=cache.block_size,
        blocks=cache.blocks,
        boot=known.boot if known else "",
        groups=named.groups,
        lookahead=named.lookahead if fleet else None,
        block_bytes=named.block_bytes,
        block_tokens=named.block_size,
        transport=transport(endpoints_of(settings, readings.sources, rank)),
        configuration=real_configuration(readings, rank),
    )
