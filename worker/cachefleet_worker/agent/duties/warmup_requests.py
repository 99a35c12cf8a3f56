"""Caches prompts by running each through the engine for one output token, one after another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from cachefleet_core.warmth import Prefix
from cachefleet_worker.agent import health
from cachefleet_worker.agent.duties.warm_prefixes import Prefixes, Progress, Result
from cachefleet_worker.agent.engines.engine import PromptRunner
from cachefleet_worker.agent.engines.engine_errors import EngineError, EngineRefusalError
from cachefleet_worker.agent.engines.prompt_run import PromptRun
from cachefleet_worker.agent.metrics import AgentMetrics

log = logging.getLogger(__name__)


class Warmer:
    """Runs the jobs of ``prefixes``.

    ``changed`` is called after each attempt, ``corrupted`` where an answer's log-probabilities are not all numbers.
    ``windowed`` says whether hits need windows: of these an engine may announce again also blocks that it has not.
    """

    def __init__(
        self,
        prompts: PromptRunner,
        metrics: AgentMetrics,
        prefixes: Prefixes,
        *,
        ranks: int,
        timeout_seconds: float,
        changed: Callable[[], None],
        corrupted: Callable[[], None],
        windowed: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._prompts = prompts
        self._metrics = metrics
        self._ranks: tuple[int | None, ...] = tuple(range(ranks)) if ranks > 1 else (None,)
        self._timeout = timeout_seconds
        self._changed = changed
        self._corrupted = corrupted
        self._windowed = windowed
        self._clock = clock
        self._wake = asyncio.Event()
        self.prefixes = prefixes

    def wake(self) -> None:
        """Look for jobs again: there may be new ones."""
        self._wake.set()

    async def run(self, model: str) -> None:
        """Run jobs until cancelled."""
        while True:
            self._wake.clear()
            job = self.prefixes.next(self._clock())
            if job is None:
                await self._idle()
            else:
                result = await self._try(model, job.prefix)
                self.prefixes.finished(job, result, self._clock())
                self._changed()

    async def _idle(self) -> None:
        due = self.prefixes.next_due()
        try:
            async with asyncio.timeout(None if due is None else max(0.0, due - self._clock())):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _try(self, model: str, prefix: Prefix) -> Result:
        """Run a prompt at every rank; the first failure is the result."""
        result = Result(Progress.FAILED)
        for rank in self._ranks:
            result = await self._try_at(rank, model, prefix)
            if result.progress is not Progress.CACHED:
                return result
        self._metrics.warmed.labels("cached").inc()
        return result

    async def _try_at(self, rank: int | None, model: str, prefix: Prefix) -> Result:
        began = self._clock()
        again = not self._windowed()
        try:
            run = await self._prompts.cache_prompt(model, prefix, again=again, timeout_seconds=self._timeout, rank=rank)
        except (EngineError, ValueError) as error:
            refused = isinstance(error, EngineRefusalError | ValueError)
            self._metrics.warmed.labels("refused" if refused else "failed").inc()
            log.warning("prefix not cached", extra={"prefix": prefix.name, "error": str(error)})
            progress = Progress.REFUSED if refused else Progress.FAILED
            return Result(progress, await self._length(model, prefix) if refused else 0, str(error))
        return self._judge(prefix, run, self._clock() - began)

    async def _length(self, model: str, prefix: Prefix) -> int:
        """The tokens of a prompt that was refused, 0 where the engine does not count them."""
        try:
            return await self._prompts.count_tokens(model, prefix)
        except (EngineError, ValueError):
            return 0

    def _judge(self, prefix: Prefix, run: PromptRun, seconds: float) -> Result:
        if not health.numbers(run.logprobs):
            self._metrics.warmed.labels("corrupted").inc()
            self._corrupted()
            return Result(Progress.FAILED, error="the engine answers with what is no number")
        if run.unfinished:
            self._metrics.warmed.labels("failed").inc()
            error = f"ended with {run.finish_reason}"
            log.warning("prefix not cached", extra={"prefix": prefix.name, "error": error})
            return Result(Progress.FAILED, error=error)
        extra = {"prompt_tokens": run.prompt_tokens, "reused": run.cached_tokens, "elapsed_ms": round(seconds * 1000)}
        log.info("prefill complete", extra={"prefix": prefix.name, **extra})
        return Result(Progress.CACHED, run.prompt_tokens)
