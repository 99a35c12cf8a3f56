"""One process of vLLM: its facts, its polls, and the event streams of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.engine_errors import EngineError, EngineUnreachableError
from cachefleet_worker.agent.engines.engine_facts import OFF, SNAPSHOT, EngineFacts
from cachefleet_worker.agent.engines.engine_poll import EnginePoll, RankStats
from cachefleet_worker.agent.engines.vllm.endpoints import Endpoints, endpoints_of
from cachefleet_worker.agent.engines.vllm.events.epoch import Limits
from cachefleet_worker.agent.engines.vllm.events.follower import Follower
from cachefleet_worker.agent.engines.vllm.events.snapshot_client import SnapshotClient, SnapshotLimits
from cachefleet_worker.agent.engines.vllm.events.source import Source, SourceLimits
from cachefleet_worker.agent.engines.vllm.http_client import AnswerError, EngineClient
from cachefleet_worker.agent.engines.vllm.vllm_facts import engine_facts
from cachefleet_worker.agent.engines.vllm.vllm_readings import Readings
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.settings import AgentSettings


class VllmProcess:
    """As ``EngineProcess`` says."""

    def __init__(
        self, settings: AgentSettings, client: EngineClient, metrics: AgentMetrics, readings: Readings
    ) -> None:
        self._settings = settings
        self._client = client
        self._metrics = metrics
        self._readings = readings
        self._facts = engine_facts(settings, readings)
        self._tells_paused = readings.fleet is None

    @property
    def facts(self) -> EngineFacts:
        """As ``EngineProcess`` says."""
        return self._facts

    async def poll(self) -> EnginePoll:
        """Metrics, the plugin's statistics, and without a plugin whether vLLM is paused."""
        scrape = await self._client.scrape()
        stats = await self._stats()
        return EnginePoll(
            ranks=scrape.ranks,
            process=scrape.process,
            adapters=scrape.adapters,
            operations=scrape.operations,
            stats=stats or {},
            silent=stats is None,
            paused=await self._paused(),
        )

    async def _stats(self) -> Mapping[int, RankStats] | None:
        """Per-rank numbers of the plugin, none without it; it answers between steps, so a timeout (None) does not fail
        the poll.
        """
        if self._readings.fleet is None:
            return {}
        try:
            return await self._client.fleet_stats()
        except EngineUnreachableError:
            raise
        except EngineError as error:
            self._metrics.polls.labels("no_stats").inc()
            return {} if isinstance(error, AnswerError) else None

    async def _paused(self) -> bool:
        """Whether an engine without the plugin says that it is paused; asked no more where it has no such route."""
        if not self._tells_paused:
            return False
        try:
            paused = await self._client.paused()
        except EngineUnreachableError:
            raise
        except EngineError:
            return False
        self._tells_paused = paused is not None
        return bool(paused)

    def event_source(
        self, rank: int, residents: Residents, *, changed: Callable[[], None], restarted: Callable[[str], None]
    ) -> Source | None:
        """As ``EngineProcess`` says."""
        settings = self._settings
        endpoints = endpoints_of(settings, self._readings.sources, rank)
        if endpoints is None:
            return None
        snapshots = self._snapshots(rank)
        return Source(
            rank,
            endpoints,
            self._follower(rank, endpoints, snapshots=snapshots is not None),
            residents,
            self._metrics,
            limits=SourceLimits(settings.event_queue, settings.event_max_bytes, settings.replay_timeout_seconds),
            changed=changed,
            restarted=restarted,
            snapshots=snapshots,
        )

    def _follower(self, rank: int, endpoints: Endpoints, *, snapshots: bool) -> Follower:
        settings = self._settings
        limits = Limits(
            held_batches=settings.held_back_batches,
            held_bytes=settings.held_back_bytes,
            probe_seconds=settings.probe_seconds,
        )
        boot = self._facts.ranks[rank].boot
        return Follower(replay=bool(endpoints.replay), snapshots=snapshots, boot=boot, limits=limits)

    def _snapshots(self, rank: int) -> SnapshotClient | None:
        """Client of the plugin's snapshots for a rank; None where there are none."""
        fleet = self._readings.fleet
        if fleet is None or rank not in fleet.ranks or fleet.mode(SNAPSHOT) == OFF:
            return None
        limits = SnapshotLimits(
            seconds=self._settings.snapshot_seconds,
            silence_seconds=self._settings.snapshot_silence_seconds,
            frame_bytes=self._settings.event_max_bytes,
        )
        key, tls = self._settings.worker_key(), self._client.tls
        return SnapshotClient(self._settings.engine_url, key=key, limits=limits, tls=tls)
