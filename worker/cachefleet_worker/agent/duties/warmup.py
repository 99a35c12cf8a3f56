"""Warm prefixes across the epochs of a worker: which there are, their progress, and whether readiness waits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from cachefleet_core.budget import blocks
from cachefleet_core.report_frames import Policy, Warm
from cachefleet_core.warmth import Warmth
from cachefleet_worker.agent.duties.warm_prefixes import Gate, Prefixes, Room
from cachefleet_worker.agent.duties.warmup_requests import Warmer
from cachefleet_worker.agent.engines.engine import PromptRunner
from cachefleet_worker.agent.engines.engine_facts import OFF, EngineFacts
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.reports.targets import Registration
from cachefleet_worker.agent.settings import AgentSettings

log = logging.getLogger(__name__)

BUDGET: Final = "budget"
"""The plugin's feature that bounds what stays cached."""
TIMEOUT: Final = "warm_timeout"
PARTIAL: Final = "warm_partial"
TOLD_SECONDS: Final = 0.5
"""Time for a control plane to name hot prefixes after an epoch's first report."""
_DEFAULT: Final = Policy(pool="-", generation=0)


class WarmUp:
    """Caches the pool's warm prefixes at the start of each epoch.

    ``windowed`` is as for Warmer. ``told_in_time`` says whether a control plane may still name prefixes,
    ``registration`` whether one admitted this worker.
    """

    def __init__(
        self,
        settings: AgentSettings,
        prompts: PromptRunner,
        metrics: AgentMetrics,
        *,
        changed: Callable[[], None],
        corrupted: Callable[[], None],
        windowed: Callable[[], bool],
        told_in_time: Callable[[], bool],
        registration: Registration,
        clock: Callable[[], float],
    ) -> None:
        self._told_in_time = told_in_time
        self._registration = registration
        self._clock = clock
        self._gate = Gate()
        self._prefixes = Prefixes(
            limit=settings.warm_queue,
            retry_base=settings.warm_retry_seconds,
            retry_cap=settings.warm_retry_cap_seconds,
        )
        self._warmer = Warmer(
            prompts,
            metrics,
            self._prefixes,
            ranks=settings.ranks,
            timeout_seconds=settings.warm_timeout_seconds,
            changed=changed,
            corrupted=corrupted,
            windowed=windowed,
            clock=clock,
        )
        self._policy = _DEFAULT
        self._facts: EngineFacts | None = None

    @property
    def policy(self) -> Policy:
        """The pool's policy, which bounds what may stay cached."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy = policy
        self._prefixes.bound(room(self._facts, policy))
        self._warmer.wake()

    @property
    def warmth(self) -> Warmth:
        """Progress counts, as States report them."""
        return self._prefixes.warmth

    def begin(self, facts: EngineFacts | None = None) -> None:
        """Begin an epoch of this engine: everything is to be cached again, readiness waits."""
        self._facts = facts
        self._prefixes.bound(room(facts, self._policy))
        self._gate.begin(self._clock())
        self._prefixes.begin()

    def ask(self, warm: Warm) -> None:
        """Add prefixes, or replace the standing ones."""
        if not warm.standing:
            self._prefixes.once(warm.prefixes)
        elif self._prefixes.stand(warm):
            log.info("warm prefixes known", extra={"prefixes": len(warm.prefixes), "generation": warm.generation})
        self._warmer.wake()

    def rest(self) -> None:
        """Try nothing more in this epoch: a draining worker would never be idle."""
        self._prefixes.rest()

    def again(self) -> None:
        """The cache was cleared: cache all standing prefixes again."""
        self._prefixes.again()
        self._warmer.wake()

    async def run(self, model: str) -> None:
        """Cache prefixes until cancelled."""
        await self._warmer.run(model)

    def holds(self) -> bool:
        """Whether readiness waits for warm prefixes."""
        timeout = self.policy.warm_timeout_seconds
        return self._gate.update(self._clock(), outstanding=self._outstanding, timeout=timeout)

    @property
    def note(self) -> str:
        """Code for readiness with prefixes missing (timeout or failures); "" for none."""
        if not self._gate.over:
            return ""
        if self._gate.late and self._outstanding:
            return TIMEOUT
        return PARTIAL if self.warmth.failed else ""

    @property
    def _outstanding(self) -> bool:
        """Whether a prefix is pending, or a control plane may still name one."""
        awaited = self.policy.warm_prefixes > 0 and not self._prefixes.named
        return self._prefixes.pending or (awaited and self._told_in_time()) or self._expecting

    @property
    def _expecting(self) -> bool:
        """Whether a control plane may still name hot prefixes, so soon after the epoch's start."""
        if not self._registration.done:
            return self._told_in_time()
        return self._clock() - self._gate.since < TOLD_SECONDS


def room(facts: EngineFacts | None, policy: Policy) -> Room:
    """What a prompt may take on this engine under this policy: it needs one token more, for its answer."""
    if facts is None:
        return Room()
    served = facts.max_model_len - 1 if facts.max_model_len else None
    rank = next(iter(facts.ranks.values()), None) if facts.mode(BUDGET) != OFF else None
    if rank is None or not rank.block_bytes or policy.budget_mib is None:
        return Room(served)
    whole = blocks(policy.budget_mib, rank.block_bytes) * rank.block_tokens
    return Room(served, whole + max(0, rank.block_tokens - 1))  # the last tokens fill no block and need none
