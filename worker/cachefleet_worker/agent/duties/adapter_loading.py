"""Keeps a running engine's adapters (LoRA) those that its pool declares, where the engine loads them while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cachefleet_core.pool.adapter_reports import MAX_ADAPTERS, MAX_DETAIL, MAX_PROBLEMS, AdapterProblem, AdapterReport
from cachefleet_core.report_frames import Policy
from cachefleet_runtime.backoff import backoff
from cachefleet_worker.agent.duties.adapter_steps import LoadAdapter, Step, steps
from cachefleet_worker.agent.engines.engine import AdapterControl
from cachefleet_worker.agent.engines.engine_errors import EngineError
from cachefleet_worker.agent.engines.engine_poll import AdapterUse
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.reports.hello import fitting
from cachefleet_worker.agent.settings import AgentSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pauses:
    """In seconds."""

    look: float
    """Between two looks at what the engine serves."""
    settle: float
    """Between the report that an adapter goes and its going: whoever has not heard yet may still ask for it."""
    retry: tuple[float, float]
    """After a first failure, and at most."""


class AdapterLoading:
    """Loads and unloads adapters in every epoch as the policy declares; only reports them where not ``on``."""

    def __init__(
        self, adapters: AdapterControl, metrics: AgentMetrics, *, on: bool, pauses: Pauses, changed: Callable[[], None]
    ) -> None:
        self._adapters = adapters
        self._on = on
        self._metrics = metrics
        self._pauses = pauses
        self._changed = changed
        self._wake = asyncio.Event()
        self._wanted: Mapping[str, str] | None = None
        self._served: Mapping[str, str] = {}
        self._placed: dict[str, tuple[str, str]] = {}
        self._problems: dict[str, str] = {}
        self._tried = False

    @property
    def pending(self) -> bool:
        """Whether some adapter has not been tried yet in this epoch."""
        return self._on and bool(self._wanted) and not self._tried

    def want(self, policy: Policy) -> None:
        """Accept a policy; adapters that it names replace all earlier ones."""
        if policy.adapters is None:
            return
        wanted = {one.name: one.path for one in policy.adapters}
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def begin(self, served: Mapping[str, str]) -> None:
        """Begin an epoch of an engine that serves these."""
        self._served, self._tried = served, False
        self._placed.clear()
        self._problems.clear()
        self._wake.set()

    def report(self, use: AdapterUse) -> AdapterReport | None:
        """What States report; None where there are no adapters."""
        if not (self._on or self._served):
            return None
        wanted = (self._wanted or {}) if self._on else {}
        problems = (AdapterProblem(name=name, detail=detail) for name, detail in self._problems.items())
        return AdapterReport(
            served=fitting(self._served),
            busy=(fitting(use.busy) or ()),
            slots=use.slots,
            loading=tuple(name for name in wanted if name not in self._served)[:MAX_ADAPTERS],
            problems=tuple(problems)[:MAX_PROBLEMS],
        )

    async def run(self) -> None:
        """Load and unload until cancelled, with retries."""
        failures = 0
        while True:
            self._wake.clear()
            wanted = self._wanted if self._on else self._served or None
            if wanted is None:
                await self._wake.wait()
                continue
            failures = 0 if await self._bring_about(wanted) else failures + 1
            first, longest = self._pauses.retry
            pause = backoff(failures - 1, first=first, longest=longest) if failures else self._pauses.look
            await self._woken(pause)

    async def _woken(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return

    async def _bring_about(self, wanted: Mapping[str, str]) -> bool:
        """Load and unload until the engine serves exactly the declared adapters; returns whether it does."""
        try:
            self._set_served(await self._adapters.served())
        except EngineError:  # polls tell of an engine that does not answer
            return False
        if not self._on:
            return True
        self._problems = {name: detail for name, detail in self._problems.items() if name in {*wanted, *self._served}}
        for step in list(steps(wanted, self._served, self._placed)):
            await self._take(step)
            if wanted != self._wanted:
                return True  # and is done anew at once
        self._tried = True
        self._changed()
        return not self._problems

    async def _take(self, step: Step) -> None:
        try:
            await (self._load(step) if isinstance(step, LoadAdapter) else self._unload(step.name))
        except EngineError as error:
            self._failed(step, " ".join(str(error).split()))
        else:
            self._problems.pop(step.name, None)
            outcome = "loaded" if isinstance(step, LoadAdapter) else "unloaded"
            self._metrics.adapters.labels(outcome).inc()
            log.info("adapter %s", outcome, extra={"adapter": step.name})

    async def _load(self, step: LoadAdapter) -> None:
        await self._adapters.load(step.name, step.path)
        served = await self._adapters.served()
        self._placed[step.name] = step.path, served.get(step.name, "")
        self._set_served(served)

    async def _unload(self, name: str) -> None:
        self._set_served({other: place for other, place in self._served.items() if other != name})
        await asyncio.sleep(self._pauses.settle)
        await self._adapters.unload(name)
        self._placed.pop(name, None)

    def _failed(self, step: Step, message: str) -> None:
        name, where = step.name, f"from {step.path}: " if isinstance(step, LoadAdapter) else ""
        detail = f"{where}{message}"[:MAX_DETAIL]
        self._metrics.adapters.labels("failed").inc()
        if self._problems.get(name) != detail:
            log.warning("adapter not as wanted", extra={"adapter": name, "error": detail})
        self._problems[name] = detail
        self._changed()

    def _set_served(self, served: Mapping[str, str]) -> None:
        if served != self._served:
            self._served = served
            self._changed()


def adapter_loading(
    settings: AgentSettings, adapters: AdapterControl, metrics: AgentMetrics, changed: Callable[[], None]
) -> AdapterLoading:
    """The AdapterLoading that the agent's settings describe."""
    retry = settings.adapter_retry_seconds, settings.adapter_retry_cap_seconds
    pauses = Pauses(settings.adapter_look_seconds, settings.drain_settle_seconds, retry)
    return AdapterLoading(adapters, metrics, on=settings.load_adapters, pauses=pauses, changed=changed)
