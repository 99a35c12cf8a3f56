"""Applies a pool's policy, read from a file or sent by a control plane, to the engine, with retries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cachefleet_core.report_frames import Policy
from cachefleet_runtime.backoff import backoff
from cachefleet_worker.agent.engines.engine import PolicyControl
from cachefleet_worker.agent.engines.engine_errors import EngineError
from cachefleet_worker.agent.metrics import AgentMetrics

log = logging.getLogger(__name__)

Stamp = tuple[int, int, int]


def supersedes(new: Policy, current: Policy | None, pool: str) -> bool:
    """Whether ``new`` is of this pool and not older than ``current``; a recreated pool counts generations anew."""
    if new.pool != pool:
        return False
    return current is None or new.uid != current.uid or new.generation >= current.generation


def with_known_shares(new: Policy, current: Policy | None) -> Policy:
    """``new`` with the earlier policy's tenant shares where it comes from a file, which has no salts."""
    if new.tenant_shares is not None or current is None or new.uid != current.uid:
        return new
    return msgspec.structs.replace(new, tenant_shares=current.tenant_shares)


def read_policy(path: Path) -> Policy:
    """The policy in a JSON file. OSError where it cannot be read, ValueError where it is no policy."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Policy)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error


class PolicyFile:
    """A policy file that the operator or a supervisor rewrites; polled."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: Stamp | None = None
        self._problem = ""

    def changed(self) -> Policy | None:
        """The policy where the file changed since the last call, else None; a problem is logged once."""
        try:
            stat = self._path.stat()
            stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)  # before the content: nothing in between is missed
            if stamp == self._stamp:
                return None
            policy = read_policy(self._path)
        except (OSError, ValueError) as error:
            self._complain(str(error))
            return None
        self._stamp, self._problem = stamp, ""
        return policy

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("policy file not usable, the last policy stays", extra={"error": problem})
        self._problem = problem


_NEVER: Final = -1


class Enforcer:
    """Keeps the wanted policy applied in the engine. ``applied`` is called when another one comes into force."""

    def __init__(
        self,
        policies: PolicyControl,
        metrics: AgentMetrics,
        *,
        pool: str,
        retry_seconds: tuple[float, float],
        applied: Callable[[Policy], None],
    ) -> None:
        self._policies = policies
        self._metrics = metrics
        self._pool = pool
        self._retry_base, self._retry_cap = retry_seconds
        self._applied = applied
        self._wake = asyncio.Event()
        self._delivered: Policy | None = None
        self._plugin = False
        self._generations: dict[int, int] = {}
        self.policy: Policy | None = None
        """The wanted policy; None before the first."""

    def accept(self, policy: Policy) -> bool:
        """Want this policy, unless it is another pool's or older; returns whether it differs from before."""
        if not supersedes(policy, self.policy, self._pool):
            return False
        policy = with_known_shares(policy, self.policy)
        changed = policy != self.policy
        self.policy = policy
        if changed:
            log.info("policy accepted", extra={"pool": policy.pool, "generation": policy.generation})
            self._wake.set()
        return changed

    def generation(self, rank: int) -> int:
        """Generation of the policy in force at a rank; 0 where there is none."""
        if self._plugin:
            return max(0, self._generations.get(rank, _NEVER))
        return self.policy.generation if self.policy else 0

    def observe(self, rank: int, generation: int | None) -> None:
        """The generation that the engine reports in force at a rank; None where it reports none."""
        if generation is None:
            return
        self._generations[rank] = generation
        if self._delivered is not None and generation < self._delivered.generation:
            self._delivered = None  # it no longer has the policy it was given
            self._wake.set()

    def begin(self, *, plugin: bool) -> None:
        """Begin an epoch, of an engine with or without the plugin."""
        self._plugin, self._delivered = plugin, None
        self._generations.clear()
        self._wake.set()

    async def run(self) -> None:
        """Give the engine the wanted policy, with retries, until cancelled."""
        failures = 0
        while True:
            self._wake.clear()
            policy = self.policy
            if policy is not None and policy != self._delivered:
                failures = 0 if await self._give(policy, failures) else failures + 1
            if failures:
                await asyncio.sleep(backoff(failures, first=self._retry_base, longest=self._retry_cap))
            else:
                await self._wake.wait()

    async def _give(self, policy: Policy, failures: int) -> bool:
        """Give the engine a policy; returns whether that one, or a later one, is in force."""
        if self._plugin:
            try:
                self._generations.update(await self._policies.put_policy(policy))
            except EngineError as error:
                self._metrics.policies.labels("failed").inc()
                if not failures:
                    log.warning("policy not in force yet", extra={"generation": policy.generation, "error": str(error)})
                return False
            there = min(self._generations.values(), default=_NEVER)
            if there != policy.generation:  # a later one counts as well; it is not ours to announce
                self._metrics.policies.labels("ignored").inc()
                self._delivered = policy if there > policy.generation else None
                return self._delivered is not None
        self._delivered = policy
        self._metrics.policies.labels("applied").inc()
        self._applied(policy)
        return True
