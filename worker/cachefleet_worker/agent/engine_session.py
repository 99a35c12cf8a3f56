"""One epoch of one engine: report streams, event sources and polls, until the engine is replaced or gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from cachefleet_worker.agent.blocks.lower_media import most_below
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.engine import EngineProcess, EventSource
from cachefleet_worker.agent.engines.engine_errors import EngineError, EngineUnreachableError
from cachefleet_worker.agent.engines.engine_facts import OFF, SNAPSHOT, EngineFacts
from cachefleet_worker.agent.engines.engine_poll import AWAKE, UNUSED, EnginePoll, LoadMetrics
from cachefleet_worker.agent.health import Reading
from cachefleet_worker.agent.load_meter import Load, LoadMeter
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.reports.hello import build_hello
from cachefleet_worker.agent.reports.stream import Stream
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.suspension import UNPOLLED, Poll, Serving, step

log = logging.getLogger(__name__)


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
        process: EngineProcess,
        facts: EngineFacts,
        metrics: AgentMetrics,
        *,
        index_key: bytes,
        epoch: str,
        changed: Callable[[], None],
        polled: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._facts = facts
        self._process = process
        self._metrics = metrics
        self._changed = changed
        self._polled = polled
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._look = asyncio.Event()
        self._refused = 0
        self._operations = AWAKE
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
                groups=facts.ranks[rank].groups,
                remembered=settings.remembered_blocks,
                namespaces=settings.namespaces,
                below=most_below(hello.blocks_total),
            )
            self._ranks[rank] = _Rank(Stream(hello, residents), LoadMeter(hello.blocks_total, facts.devices))

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
        """Tokens after a block that the engine's hashes cover, where it does not tell and its events showed another
        number.
        """
        ranks = (each for rank, each in self._ranks.items() if self._facts.ranks[rank].lookahead is None)
        seen = (each.stream.residents.other_lookahead for each in ranks)
        return next((lookahead for lookahead in seen if lookahead is not None), None)

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

    def _sources(self) -> list[EventSource]:
        follow = self._process.event_source
        sources = (
            follow(rank, each.stream.residents, changed=self._changed, restarted=self._end)
            for rank, each in self._ranks.items()
        )
        return [source for source in sources if source is not None]

    def _end(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(reason)

    async def _poll(self) -> None:
        while True:
            try:
                self._answered(await self._process.poll())
            except EngineError as error:
                self._unanswered(error)
            self._polled()
            self._look.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look.wait(), self._settings.poll_seconds)

    def _answered(self, poll: EnginePoll) -> None:
        self._metrics.polls.labels("answered").inc()
        self._refused = 0
        if not self.answering:
            log.info("engine answers again", extra={"epoch": self.epoch})
        self.answering = True
        if reason := self._over(poll):
            self._end(reason)
            return
        self.adapter_use = poll.adapters
        for rank, each in self._ranks.items():
            load_metrics = poll.ranks.get(rank)
            if load_metrics is None:
                continue
            each.meter.add(load_metrics, poll.stats.get(rank))
            if load_metrics.host_blocks is not None:
                each.stream.residents.bound_below(load_metrics.host_blocks)
            self._look_for_sleep(each, load_metrics, poll)
            self._judge(rank, each, _of_rank(poll, rank, load_metrics))
        self._operations = poll.operations

    def _look_for_sleep(self, each: _Rank, load_metrics: LoadMetrics, poll: EnginePoll) -> None:
        """Sleeping drops the cache, which an idle engine does not publish; one with snapshots does, at once."""
        slept = load_metrics.asleep or poll.operations.sleeps > self._operations.sleeps
        if slept and self._facts.mode(SNAPSHOT) == OFF:
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

    def _over(self, poll: EnginePoll) -> str:
        """Why the epoch is over; "" where it goes on."""
        if poll.process != self._facts.process:
            return "process_start"
        boots = {rank: known.boot for rank, known in self._facts.ranks.items() if known.boot}
        if any(rank in boots and boots[rank] != each.boot for rank, each in poll.stats.items()):
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


def _of_rank(poll: EnginePoll, rank: int, load_metrics: LoadMetrics) -> Poll:
    return Poll(
        asyncio.get_running_loop().time(),
        load_metrics,
        poll.operations,
        poll.stats.get(rank),
        silent=poll.silent,
        paused=poll.paused,
    )
