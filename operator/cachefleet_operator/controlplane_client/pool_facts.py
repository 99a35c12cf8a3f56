"""A pool's facts as the control plane reports them, or why there are none; and what is wrong with its workers (pure).

All of it is observation and may be missing: nothing here decides whether workers run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from cachefleet_core.fleet_status.pool_facts import PoolDetail
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.pool.adapter_reports import AdapterProblem
from cachefleet_core.report_frames import Phase
from cachefleet_core.warmth import WarmProblem
from cachefleet_operator.reasons import Reason

MAX_TEXT: Final = 256


class FactsError(ValueError):
    """An answer of the control plane that cannot be parsed."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a pool, or the reason why nothing is."""

    pool: PoolDetail | None = None
    reason: Reason = Reason.NO_CONTROL_PLANE
    message: str = "CACHEFLEET_ADMIN_URL names no control plane to ask"

    @property
    def members(self) -> tuple[WorkerFacts, ...]:
        """Its workers, one for each rank; none where nothing is known."""
        return self.pool.members if self.pool else ()


UNASKED: Final = Facts()


def parse(body: bytes) -> PoolDetail:
    """Parse an answer's JSON; FactsError where it is invalid."""
    try:
        return msgspec.json.decode(body, type=PoolDetail)
    except msgspec.MsgspecError as error:
        raise FactsError(str(error)[:MAX_TEXT]) from error


def block_bytes(pool: PoolDetail) -> int:
    """Bytes of a block on one device, from the first worker of the contract that reports any; 0 where none does."""
    ours = (member for member in pool.members if not member.excluded)
    return next((member.block_bytes for member in ours if member.block_bytes), 0)


def essence(facts: Facts) -> object:
    """Equal for facts that differ only in figures that change all the time: blocks, ratios, values."""
    pool = facts.pool
    if pool is None:
        return facts.reason
    return (
        pool.contract,
        pool.hit_ratio.value is None,
        pool.hit_ratio.sampled,
        pool.hit_ratio.by,
        block_bytes(pool),
        pool.adapter_conflicts,
        pool.alias_conflicts,
        frozenset(map(_life, pool.members)),
    )


def figures(facts: Facts) -> object:
    """Equal for facts that nothing is made of that differs: those of time, and of requests, are in no status."""
    ratio = facts.pool.hit_ratio if facts.pool else None
    measured = ratio and (ratio.value, ratio.counted, ratio.tokens, ratio.window_seconds)
    return essence(facts), facts.message, measured, tuple(map(_amounts, facts.members))


def _amounts(member: WorkerFacts) -> object:
    amounts = (member.held_blocks, member.idle_bytes, member.cache_value, member.promised_blocks, member.trust)
    return (member.name, member.rank, *amounts, member.phase_reason, member.warmth)


def _life(member: WorkerFacts) -> object:
    cold = tuple((problem.name, problem.kind) for problem in member.warmth.problems)
    unloaded = member.adapters.problems if member.adapters else ()
    said = (member.phase, member.epoch, member.warmed, cold, member.differences, member.configuration, unloaded)
    wrong = (member.doubted, member.suspended, member.key_refused, member.blind, member.not_indexed, member.vouched)
    return (member.name, member.rank, member.ready, member.fresh, *said, *wrong)


def failed(facts: Facts) -> WorkerFacts | None:
    """The first worker whose phase is Failed, None where there is none."""
    return next((member for member in facts.members if member.phase == Phase.FAILED), None)


def suspended(facts: Facts) -> list[WorkerFacts]:
    """The workers whose engines answer and serve nothing."""
    return [member for member in facts.members if member.suspended]


def key_refusing(facts: Facts) -> list[WorkerFacts]:
    """The workers that refuse the gateway's key."""
    return [member for member in facts.members if member.key_refused]


def doubted(facts: Facts) -> WorkerFacts | None:
    """The first worker whose engine serves little of what it claims to hold, None where there is none."""
    return next((member for member in facts.members if member.doubted), None)


def unlike_asked(facts: Facts) -> tuple[WorkerFacts, ...]:
    """Workers whose engine has something else than the pool asks for."""
    return tuple(member for member in facts.members if member.configuration)


def unloaded(facts: Facts) -> tuple[str, AdapterProblem] | None:
    """The first adapter that a worker cannot load, with the worker's name; None where there is none."""
    return next(
        ((member.name, problem) for member in facts.members if member.adapters for problem in member.adapters.problems),
        None,
    )


def unwarmed(facts: Facts) -> tuple[str, WarmProblem] | None:
    """The first warm prefix that a worker cannot cache, with the worker's name; None where there is none."""
    return next(((member.name, problem) for member in facts.members for problem in member.warmth.problems), None)


def blind(facts: Facts) -> tuple[WorkerFacts, ...]:
    """Workers whose engine serves from a cache of which the index holds nothing."""
    return tuple(member for member in facts.members if member.blind)


def not_indexed(facts: Facts) -> WorkerFacts | None:
    """The first worker on whose engine hits cannot be told from its blocks, None where there is none."""
    return next((member for member in facts.members if member.not_indexed), None)


def excluded(facts: Facts) -> WorkerFacts | None:
    """The first worker excluded because its contract differs from its pool's, None where there is none."""
    return next((member for member in facts.members if member.excluded and member.differences), None)
