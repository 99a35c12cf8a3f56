"""One epoch of one engine: report streams, event sources and polls, until the engine is replaced or gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from cachefleet_core.native import Code
from cachefleet_worker.agent.blocks.lower_media import most_below
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.vllm.adapter_info import UNUSED
from cachefleet_worker.agent.engines.vllm.events.epoch import Limits
from cachefleet_worker.agent.engines.vllm.events.follower import Follower
from cachefleet_worker.agent.engines.vllm.events.snapshot_client import SnapshotClient, SnapshotLimits
from cachefleet_worker.agent.engines.vllm.events.source import Endpoints, Source, SourceLimits
from cachefleet_worker.agent.engines.vllm.http_client import (
    EngineAnswerError,
    EngineClient,
    EngineError,
    EngineFacts,
    EngineUnreachableError,
)
from cachefleet_worker.agent.engines.vllm.metrics_text import AWAKE, Load, LoadMeter, LoadMetrics, Scrape
from cachefleet_worker.agent.engines.vllm.plugin_api import OFF, RankStats
from cachefleet_worker.agent.health import Reading
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.reports.hello import build_hello, devices_of, endpoints_of, groups_of
from cachefleet_worker.agent.reports.stream import Stream
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.suspension import UNPOLLED, Poll, Serving, step

log = logging.getLogger(__name__)

SNAPSHOT: Final = "snapshot"


@dataclass(slots=True)
class _Rank:
    stream: Stream
    meter: LoadMeter
    serving: Serving = UNPOLLED


class Session:
    """One epoch. ``run`` returns the reason it ended: another engine process, or an unreachable one."""

    def __init__(
        self,
        settings: AgentSettings,
        facts: EngineFacts,
        client: EngineClient,
        metrics: AgentMetrics,
        *,
        index_key: bytes,
        code: Code,
        epoch: str,
        changed: Callable[[], None],
        polled: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._facts = facts
        self._client = client
        self._metrics = metrics
        self._changed = changed
        self._polled = polled
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._look = asyncio.Event()
        self._refused = 0
        self._operations = AWAKE
        self._tells_paused = facts.fleet is None
        self.answering = True
        self.adapter_use = UNUSED
        """Of adapters, by the last poll that was answered."""
        self.epoch = epoch
        self._ranks: dict[int, _Rank] = {}
        for rank in range(settings.ranks):
            hello = build_hello(settings, facts, rank, epoch=epoch)
            for each in hello.configuration:
                log.warning("the engine is not as asked", extra={"rank": rank, **msgspec.structs.asdict(each)})
            residents = Residents(
                index_key,
                hello.contract.fingerprint(),
                block_size=hello.contract.block_size,
                lookahead=hello.contract.lookahead,
                groups=groups_of(facts, rank),
                remembered=settings.remembered_blocks,
                namespaces=settings.namespaces,
                below=most_below(hello.blocks_total),
                code=code,
            )
            self._ranks[rank] = _Rank(Stream(hello, residents), LoadMeter(hello.blocks_total, devices_of(facts)))

    @property
    def model(self) -> str:
        """Name of the served base model."""
        return self._facts.model

    @property
    def streams(self) -> dict[int, Stream]:
        """Report stream of each rank."""
        return {rank: each.stream for rank, each in self._ranks.items()}

    @property
    def other_lookahead(self) -> int | None:
        """Tokens after a block that a stock engine's hashes cover, where its events showed another number."""
        ranks = [] if self._facts.fleet else self._ranks.values()
        found = (each.stream.residents.other_lookahead for each in ranks)
        return next((seen for seen in found if seen is not None), None)

    @property
    def idle(self) -> bool:
        """Whether no rank has a running or waiting request, by the last poll."""
        return all(each.meter.load.running + each.meter.load.waiting == 0 for each in self._ranks.values())

    @property
    def reading(self) -> Reading:
        """Counters over all ranks, by the last poll that was answered."""
        return sum((each.meter.reading for each in self._ranks.values()), Reading())

    def load(self, rank: int) -> Load:
        """Load of a rank by the last poll; zeros before the first."""
        return self._ranks[rank].meter.load

    def suspended(self, rank: int) -> str:
        """Why a rank serves nothing though its engine answers, by the last poll; "" where it serves."""
        return self._ranks[rank].serving.suspended

    async def run(self) -> str:
        """Poll and follow events until the epoch ends; returns the reason. A source's failure is raised."""
        tasks = [asyncio.create_task(self._poll())]
        tasks += [asyncio.create_task(source.run()) for source in self._sources()]
        try:
            awaited: list[asyncio.Future[Any]] = [self._ended, *tasks]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # none returns by itself: raises its failure
            return self._ended.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def look_now(self) -> None:
        """Poll at once: something has happened in the engine that may mean that it serves nothing."""
        self._look.set()

    def forget(self) -> None:
        """Withdraw all blocks of all ranks."""
        for each in self._ranks.values():
            each.stream.residents.forget()

    def _sources(self) -> list[Source]:
        return [
            self._source(rank, each, endpoints)
            for rank, each in self._ranks.items()
            if (endpoints := endpoints_of(self._settings, self._facts, rank)) is not None
        ]

    def _source(self, rank: int, each: _Rank, endpoints: Endpoints) -> Source:
        settings = self._settings
        limits = Limits(
            held_batches=settings.held_back_batches,
            held_bytes=settings.held_back_bytes,
            probe_seconds=settings.probe_seconds,
        )
        snapshots = self._snapshots(rank)
        boot = self._facts.fleet.ranks[rank].boot if self._facts.fleet and rank in self._facts.fleet.ranks else ""
        return Source(
            rank,
            endpoints,
            Follower(replay=bool(endpoints.replay), snapshots=snapshots is not None, boot=boot, limits=limits),
            each.stream.residents,
            self._metrics,
            limits=SourceLimits(settings.event_queue, settings.event_max_bytes, settings.replay_timeout_seconds),
            changed=self._changed,
            restarted=self._end,
            snapshots=snapshots,
        )

    @property
    def _snapshots_served(self) -> bool:
        return self._facts.fleet is not None and self._facts.fleet.mode(SNAPSHOT) != OFF

    def _snapshots(self, rank: int) -> SnapshotClient | None:
        """Client of the plugin's snapshots for a rank; None where there are none."""
        fleet = self._facts.fleet
        if fleet is None or rank not in fleet.ranks or not self._snapshots_served:
            return None
        limits = SnapshotLimits(
            seconds=self._settings.snapshot_seconds,
            silence_seconds=self._settings.snapshot_silence_seconds,
            frame_bytes=self._settings.event_max_bytes,
        )
        key, tls = self._settings.worker_key(), self._client.tls
        return SnapshotClient(self._settings.engine_url, key=key, limits=limits, tls=tls)

    def _end(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(reason)

    async def _poll(self) -> None:
        while True:
            try:
                self._scraped(await self._client.scrape(), await self._stats(), paused=await self._paused())
            except EngineError as error:
                self._unanswered(error)
            self._polled()
            self._look.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look.wait(), self._settings.poll_seconds)

    async def _stats(self) -> Mapping[int, RankStats] | None:
        """Per-rank numbers of the plugin, none without it; it answers between steps, so a timeout (None) does not fail
        the poll.
        """
        if self._facts.fleet is None:
            return {}
        try:
            return await self._client.fleet_stats()
        except EngineUnreachableError:
            raise
        except EngineError as error:
            self._metrics.polls.labels("no_stats").inc()
            return {} if isinstance(error, EngineAnswerError) else None

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

    def _scraped(self, scrape: Scrape, told: Mapping[int, RankStats] | None, *, paused: bool = False) -> None:
        stats = told or {}
        self._metrics.polls.labels("answered").inc()
        self._refused = 0
        if not self.answering:
            log.info("engine answers again", extra={"epoch": self.epoch})
        self.answering = True
        if reason := self._over(scrape, stats):
            self._end(reason)
            return
        self.adapter_use = scrape.adapters
        for rank, each in self._ranks.items():
            load_metrics = scrape.ranks.get(rank)
            if load_metrics is None:
                continue
            each.meter.add(load_metrics, stats.get(rank))
            if load_metrics.host_blocks is not None:
                each.stream.residents.bound_below(load_metrics.host_blocks)
            self._look_for_sleep(each, load_metrics, scrape)
            self._judge(
                rank,
                each,
                Poll(
                    asyncio.get_running_loop().time(),
                    load_metrics,
                    scrape.operations,
                    stats.get(rank),
                    silent=told is None,
                    paused=paused,
                ),
            )
        self._operations = scrape.operations

    def _look_for_sleep(self, each: _Rank, load_metrics: LoadMetrics, scrape: Scrape) -> None:
        """Sleeping drops the cache, which an idle engine does not publish; the plugin does, at once."""
        slept = load_metrics.asleep or scrape.operations.sleeps > self._operations.sleeps
        if slept and not self._snapshots_served:
            each.stream.residents.forget()

    def _judge(self, rank: int, each: _Rank, poll: Poll) -> None:
        before, each.serving = each.serving, step(each.serving, poll, stuck_seconds=self._settings.stuck_seconds)
        if each.serving.suspended != before.suspended:
            now = each.serving.suspended
            log.log(
                logging.WARNING if now else logging.INFO,
                "the engine serves nothing, so it gets no requests" if now else "the engine serves again",
                extra={"rank": rank, "why": now or before.suspended, "epoch": self.epoch},
            )

    def _over(self, scrape: Scrape, stats: Mapping[int, RankStats]) -> str:
        """Why the epoch is over; "" where it goes on."""
        if scrape.process != self._facts.process:
            return "process_start"
        known = self._facts.fleet.ranks if self._facts.fleet else {}
        if any(rank in known and known[rank].boot != each.boot for rank, each in stats.items()):
            return "boot"
        return "" if self.other_lookahead is None else "lookahead"

    def _unanswered(self, error: EngineError) -> None:
        gone = isinstance(error, EngineUnreachableError)
        self._metrics.polls.labels("refused" if gone else "failed").inc()
        self._refused = self._refused + 1 if gone else 0
        if self.answering:
            log.warning("engine does not answer", extra={"epoch": self.epoch, "error": str(error)})
        self.answering = False
        if self._refused >= self._settings.unreachable_polls:
            self._end("unreachable")
