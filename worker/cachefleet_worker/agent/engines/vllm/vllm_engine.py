"""vLLM, as the agent sees an engine."""

from __future__ import annotations

import aiohttp

from cachefleet_worker.agent.engines.tls import engine_tls
from cachefleet_worker.agent.engines.vllm.adapter_routes import AdapterRoutes
from cachefleet_worker.agent.engines.vllm.http_client import EngineClient
from cachefleet_worker.agent.engines.vllm.vllm_process import VllmProcess
from cachefleet_worker.agent.engines.vllm.vllm_readings import read_all
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.settings import AgentSettings


class VllmEngine:
    """As ``Engine`` says. OSError where the worker key or the authorities cannot be read."""

    def __init__(self, settings: AgentSettings, http: aiohttp.ClientSession, metrics: AgentMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._client = EngineClient(
            http,
            settings.engine_url,
            key=settings.worker_key(),
            timeout_seconds=settings.engine_timeout_seconds,
            tls=engine_tls(settings),
        )
        self.policies = self._client
        self.prompts = self._client
        self.adapters = AdapterRoutes(self._client, load_seconds=settings.adapter_load_seconds)

    async def connect(self) -> VllmProcess:
        """As ``Engine`` says."""
        return VllmProcess(self._settings, self._client, self._metrics, await read_all(self._client))
