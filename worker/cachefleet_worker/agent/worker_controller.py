"""Applies policy, warm-up, health and drain to a worker, across the epochs of its engine.

It observes the present session from outside and computes phase and readiness.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial

from cachefleet_core.report_frames import Drain, Phase, Policy, Warm
from cachefleet_runtime.tasks import restarting
from cachefleet_worker.agent.duties.adapter_loading import adapter_loading
from cachefleet_worker.agent.duties.answers_handed_back import AnswersHandedBack
from cachefleet_worker.agent.duties.conversation_ending import ConversationEnding
from cachefleet_worker.agent.duties.draining import Draining
from cachefleet_worker.agent.duties.phases import Condition, phase, unready
from cachefleet_worker.agent.duties.policy_delivery import Enforcer, PolicyFile
from cachefleet_worker.agent.duties.warmup import WarmUp
from cachefleet_worker.agent.engine_session import Session
from cachefleet_worker.agent.engines.engine import Engine
from cachefleet_worker.agent.engines.engine_facts import OFF, EngineFacts
from cachefleet_worker.agent.engines.engine_poll import UNUSED
from cachefleet_worker.agent.health import Health, Reading, Tolerance, step
from cachefleet_worker.agent.load_meter import Load
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.reports.stream import WorkerState
from cachefleet_worker.agent.reports.targets import Registration
from cachefleet_worker.agent.settings import AgentSettings

log = logging.getLogger(__name__)


class WorkerController:
    """Applies policy, warm-up, health and drain across restarts of the engine.

    ``changed`` is called when something that a State reports has changed.
    """

    def __init__(
        self,
        settings: AgentSettings,
        engine: Engine,
        metrics: AgentMetrics,
        *,
        changed: Callable[[], None],
        registration: Registration,
        clock: Callable[[], float],
        key_refused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._key_refused = key_refused
        self._settings = settings
        self._metrics = metrics
        self._changed = changed
        self._registration = registration
        self._clock = clock
        self._began: float | None = None
        """When the first epoch began; nothing is reported before it."""
        self._epoch_began = 0.0
        self._session: Session | None = None
        self._epoch = ""
        """Name of the last epoch, also after its end."""
        self._lost_at: float | None = None
        self._health = Health()
        self._tolerance = Tolerance(settings.corrupted_requests, settings.error_polls)
        self._clears = self._flushed_blocks = 0
        self.draining = Draining(settings.drain_settle_seconds)
        self.drain_begun = asyncio.Event()  # while there is a drain
        self._conversations = ConversationEnding(engine.policies)
        self._handed_back = AnswersHandedBack(engine.policies)
        self._warm_up = self._warming(engine)
        self._adapters = adapter_loading(settings, engine.adapters, metrics, changed)
        self.enforcer = Enforcer(
            engine.policies,
            metrics,
            pool=settings.pool,
            retry_seconds=(settings.policy_retry_seconds, settings.policy_retry_cap_seconds),
            applied=self._in_force,
        )

    def _warming(self, engine: Engine) -> WarmUp:
        return WarmUp(
            self._settings,
            engine.prompts,
            self._metrics,
            changed=self._changed,
            corrupted=self.corrupted,
            windowed=self._windowed,
            told_in_time=self._told_in_time,
            registration=self._registration,
            clock=self._clock,
        )

    # State

    @property
    def phase(self) -> Phase:
        """The worker's phase, computed from the present condition."""
        return phase(self._condition(), failed_seconds=self._settings.failed_seconds)

    @property
    def unready(self) -> list[str]:
        """Reasons against readiness; empty where the worker should take traffic."""
        return unready(self._condition(), registration_seconds=self._settings.registration_seconds)

    @property
    def note(self) -> str:
        """A remark for ``/readyz`` (an engine that serves nothing, warm-up late or partial); "" for none."""
        if self._session is None:
            return ""
        suspended = (self._session.suspended(rank) for rank in self._session.streams)
        return next(filter(None, suspended), "") or self._warm_up.note

    def worker_state(self, rank: int) -> WorkerState:
        """What a State of this rank reports besides its stream."""
        suspended = self._session.suspended(rank) if self._session else ""
        return WorkerState(
            phase=self.phase,
            reason=",".join(self.unready) or suspended or self.note,
            suspended=suspended,
            drain_seconds=self.draining.left(self._clock()),
            load=self._session.load(rank) if self._session else Load(),
            generation=self.enforcer.generation(rank),
            warmth=self._warm_up.warmth,
            adapters=self._adapters.report(self._session.adapter_use if self._session else UNUSED),
        )

    def _condition(self) -> Condition:
        now, session = self._clock(), self._session
        return Condition(
            contract_known=session is not None,
            answering=session is not None and session.answering,
            refused=self._key_refused(),
            draining=self.draining.until is not None,
            finding=self._health.finding,
            warming=session is not None and (self._warm_up.holds() or self._loads_adapters(now)),
            registered=self._registration.done,
            waited_for=self._waited_for(now),
            lost_for=None if self._lost_at is None else now - self._lost_at,
        )

    def _loads_adapters(self, now: float) -> bool:
        """Whether readiness waits for adapters: until each was tried, but no longer than for warm prefixes."""
        return self._adapters.pending and now - self._epoch_began < self._warm_up.policy.warm_timeout_seconds

    def _windowed(self) -> bool:
        streams = self._session.streams.values() if self._session else ()
        return any(stream.residents.rule.windows for stream in streams)

    def _told_in_time(self) -> bool:
        return self._registration.done or self._waited_for(self._clock()) < self._settings.registration_seconds

    def _waited_for(self, now: float) -> float:
        return 0.0 if self._began is None else now - self._began

    # Commands

    def policy(self, policy: Policy) -> None:
        """Accept a pool's policy; an older one, or another pool's, changes nothing."""
        if self.enforcer.accept(policy):
            self._warm_up.policy = policy
            self._adapters.want(policy)
            self._changed()

    def warm(self, warm: Warm) -> None:
        """Accept prefixes to cache."""
        self._warm_up.ask(warm)
        self._changed()

    def drain(self, drain: Drain) -> None:
        """Drain the worker: no new work, running requests finish."""
        self._drain(drain.seconds, None)

    def let_end(self, seconds: float) -> None:
        """Drain for the kubelet's SIGTERM, which gives no reason.

        Where another engine process follows, as after a failed liveness probe, the drain is cancelled.
        """
        self._drain(seconds, self._epoch)

    def _drain(self, seconds: float, epoch: str | None) -> None:
        self.drain_begun.set()
        if self.draining.begin(self._clock(), seconds, epoch=epoch):
            log.info("draining", extra={"seconds": seconds})
            self._warm_up.rest()
            self._handed_back.drains(seconds)
        self._changed()

    def drained(self) -> bool:
        """Whether the drain is over: engine gone or idle for the settle time, or time up."""
        return self.draining.over(self._clock(), engine=self._session is not None)

    async def watch(self, file: PolicyFile) -> None:
        """Apply changes of a policy file until cancelled."""
        while True:
            policy = file.changed()
            if policy is not None:
                self.policy(policy)
            await asyncio.sleep(self._settings.policy_file_seconds)

    # Epochs

    @asynccontextmanager
    async def epoch(self, session: Session, facts: EngineFacts) -> AsyncIterator[None]:
        """Attach one epoch's session for as long as it lasts."""
        self._begin(session, facts)
        tasks = [
            asyncio.create_task(self._keep("warmth", partial(self._warm_up.run, session.model))),
            asyncio.create_task(self._keep("policy", self.enforcer.run)),
            asyncio.create_task(self._keep("conversations", self._conversations.run)),
            asyncio.create_task(self._keep("adapters", self._adapters.run)),
            asyncio.create_task(self._keep("hand-back", self._handed_back.run)),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            session.forget()
            self._session, self._lost_at = None, self._clock()

    def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> Coroutine[None, None, None]:
        """Run ``work``, which never returns; restart it where it fails."""
        return restarting(name, work, pause_seconds=self._settings.poll_seconds, failed=self._metrics.crashed)

    def _begin(self, session: Session, facts: EngineFacts) -> None:
        self._session, self._lost_at = session, None
        self._epoch = session.epoch
        self._epoch_began = self._clock()
        self._began = self._epoch_began if self._began is None else self._began
        self._adapters.begin(facts.adapters)
        if self.draining.lives(session.epoch):
            self.drain_begun.clear()
            log.info("the engine was started anew, work is taken again")
        self._health, self._clears, self._flushed_blocks = Health(), 0, 0
        self._handed_back.begin(able=facts.mode("preemption") != OFF)
        self._conversations.begin(kept=facts.mode("conversations") != OFF)
        self._warm_up.begin(facts)
        if self.draining.until is not None:
            self._warm_up.rest()
        self.enforcer.begin(plugin=facts.takes_policy)
        self._metrics.capability.clear()
        for each in session.streams[0].hello.capabilities:
            self._metrics.capability.labels(each.feature, each.mode).set(1)

    def polled(self) -> None:
        """Called after each poll of the engine: update drain, policy and health."""
        session = self._session
        if session is None:
            return
        if session.answering:
            self.draining.observed(self._clock(), idle=session.idle)
        else:
            self.draining.unanswered(self._clock())
        for rank in session.streams:
            self.enforcer.observe(rank, session.load(rank).generation)
        self._judge(step(self._health, session.reading, self._tolerance))
        self._look_for_flushes(session)
        self.look_for_clears()

    def _look_for_flushes(self, session: Session) -> None:
        """Where blocks were flushed from the cache, some of a warm prefix may be gone: warm up again."""
        flushed = sum(session.load(rank).flushed for rank in session.streams)
        if flushed > self._flushed_blocks and not self._health.finding:
            log.info("cached blocks were flushed, warm prefixes run again", extra={"blocks": flushed})
            self._warm_up.again()
        # Fewer: a busy engine's plugin did not tell this time.
        self._flushed_blocks = max(flushed, self._flushed_blocks)

    def look_for_clears(self) -> None:
        """Where the cache was cleared, by the deltas sent so far, end conversations and warm up again."""
        clears = sum(stream.clears for stream in self._session.streams.values()) if self._session else 0
        if clears > self._clears and self._session is not None:
            self._session.look_now()  # who falls asleep or is paused clears it first
        if clears > self._clears and not self._health.finding:
            log.info("cache cleared, warm prefixes run again")
            self._conversations.end()
            self._warm_up.again()
        self._clears = clears

    def corrupted(self) -> None:
        """Called where the agent itself got an answer with NaN or infinite log-probabilities."""
        reading = Reading(corrupted=self._tolerance.corrupted + 1)
        self._judge(step(self._health, reading, self._tolerance))

    def _judge(self, health: Health) -> None:
        found = health.finding and not self._health.finding
        self._health = health
        if not found or self._session is None:
            return
        log.error("engine withdrawn until it is restarted", extra={"finding": health.finding})
        self._metrics.withdrawals.labels(health.finding).inc()
        for stream in self._session.streams.values():
            stream.disowned = True
        self._conversations.end()
        self._changed()

    def _in_force(self, policy: Policy) -> None:
        """Log the lines that requirement C16 fixes."""
        fields = {
            "model": self._session.model if self._session else "",
            "budget_mb": policy.budget_mib,
            "max_entries": policy.max_entries,
            "generation": policy.generation,
        }
        kept = policy.budget_mib is None or policy.budget_mib > 0
        log.info("prefix cache enabled for this model" if kept else "prefix cache off for this model", extra=fields)
        self._changed()
