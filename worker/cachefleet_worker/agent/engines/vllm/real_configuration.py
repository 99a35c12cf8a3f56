"""An engine's real configuration, from its models, metrics and the plugin's document: pure."""

from __future__ import annotations

from typing import Final

from cachefleet_core.engine.engine_configuration import EngineConfiguration
from cachefleet_worker.agent.engines.vllm.metrics_text import CacheConfig
from cachefleet_worker.agent.engines.vllm.plugin_api import NOT_TOLD, ServerFacts
from cachefleet_worker.agent.engines.vllm.vllm_readings import Readings

_NO_CACHE: Final = CacheConfig(0, 0)


def real_configuration(readings: Readings, rank: int) -> EngineConfiguration:
    """The configuration of one rank; None for fields that this engine does not report."""
    cache = readings.caches.get(rank, _NO_CACHE)
    server = readings.fleet.server if readings.fleet else NOT_TOLD
    publishes, endpoint = _events(readings, rank, server)
    return EngineConfiguration(
        served_model_name=readings.models.model,
        max_model_len=readings.models.max_model_len or None,
        block_size=cache.block_size or None,
        enable_prefix_caching=server.prefix_caching if cache.prefix_caching is None else cache.prefix_caching,
        prefix_caching_hash_algo=cache.hash_algorithm or None,
        kv_cache_memory_bytes=cache.memory_bytes,
        num_gpu_blocks_override=cache.blocks_override,
        tensor_parallel_size=server.tensor_parallel_size,
        data_parallel_size=server.data_parallel_size,
        enable_kv_cache_events=publishes,
        events_endpoint=endpoint,
        adapters=dict(readings.models.adapters),
    )


def _events(readings: Readings, rank: int, server: ServerFacts) -> tuple[bool | None, str | None]:
    """Whether a rank publishes its events, and where; of other ranks than the first the place is its own."""
    if readings.sources is None:
        return server.kv_events, server.events_endpoint if server.kv_events and rank == 0 else None
    source = readings.sources.get(rank)
    if source is None or not source.endpoint:
        return False, None
    return True, source.endpoint if rank == 0 else None
