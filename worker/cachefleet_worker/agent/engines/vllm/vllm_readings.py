"""Answers of vLLM and its plugin at the start of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cachefleet_worker.agent.engines.engine_errors import EngineError
from cachefleet_worker.agent.engines.vllm.endpoints import PublisherEndpoints
from cachefleet_worker.agent.engines.vllm.http_client import EngineClient, Models
from cachefleet_worker.agent.engines.vllm.metrics_text import CacheConfig
from cachefleet_worker.agent.engines.vllm.plugin_api import FleetFacts


@dataclass(frozen=True, slots=True)
class Readings:
    """Answers of one vLLM; ``sources`` and ``endpoints`` are None where it does not report them, ``fleet`` without a
    plugin that accepts the worker key.
    """

    models: Models
    version: str
    caches: Mapping[int, CacheConfig]
    tokenizer: str
    template: str
    sources: Mapping[int, PublisherEndpoints] | None
    process: str | None
    endpoints: tuple[str, ...] | None = None
    fleet: FleetFacts | None = None


async def read_all(client: EngineClient) -> Readings:
    """All of it. EngineError until vLLM serves and reports its block pool."""
    await client.healthy()
    models = await client.models()
    scrape = await client.scrape()
    if not scrape.caches:
        raise EngineError("the engine does not say its block size and count (is --disable-log-stats set?)")
    return Readings(
        models=models,
        version=await client.version(),
        caches=scrape.caches,
        tokenizer=await client.tokenizer_digest(models.model),
        template=await client.template_digest(models.model),
        sources=await client.sources(),
        process=scrape.process,
        endpoints=await client.endpoints(),
        fleet=await client.capabilities(),
    )
