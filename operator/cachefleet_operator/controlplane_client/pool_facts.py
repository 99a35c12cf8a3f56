"""A pool's facts as the control plane reports them: contract, hit ratio, workers (pure).

All of it is observation and may be missing: nothing here decides whether workers run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cachefleet_core.report_frames import Phase
from cachefleet_operator.reasons import Reason

MAX_TEXT: Final = 256
DOUBTED: Final = 0.5
"""A worker's claims are counted on less than this: it serves less than a quarter of them."""

# The CRD's bounds on status fields: the API server would refuse a whole status for one value beyond them.
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Word = Annotated[str, Meta(max_length=64)]


class FactsError(ValueError):
    """An answer of the control plane that cannot be parsed."""


class Contract(msgspec.Struct, frozen=True, rename="camel"):
    """The contract that all workers of a pool share: model, tokenizer, block size and version of block keys."""

    fingerprint: Annotated[str, Meta(max_length=128)]
    weights: str = ""
    revision: str = ""
    tokenizer: str = ""
    block_size: int = 0
    key_version: int = 0
    lookahead: int = 0


class HitRatio(msgspec.Struct, frozen=True, rename="camel"):
    """Share of prompt tokens from cache in the last ``window_seconds``; None where there were none."""

    value: Annotated[float, Meta(ge=0, le=1000)] | None = None
    window_seconds: float = 0.0
    queried_tokens: _Count = 0
    tokens: _Count = 0
    by: Annotated[str, Meta(max_length=16)] = "engines"
    """What ``value`` goes by: what answers told to be served, or the engines' own counters."""
    counted: Annotated[float, Meta(ge=0, le=1000)] | None = None
    """The ratio by those counters."""
    sampled: bool = True
    """Whether enough was looked up to compare it with the objective."""


class Difference(msgspec.Struct, frozen=True, rename="camel"):
    """A field in which a worker's contract differs from its pool's, or an engine from what its pool asks for."""

    field: str
    expected: str = ""
    actual: str = ""


class Load(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a worker's load metrics that a status shows."""

    blocks_idle: _Count | None = None


class WarmProblem(msgspec.Struct, frozen=True, rename="camel"):
    """A warm prefix that is not cached and will not be by waiting; ``kind`` as in ``cachefleet_core.warmth``."""

    name: str
    kind: str = ""
    tokens: _Count = 0
    limit: _Count = 0
    attempts: _Count = 0
    detail: str = ""


class Warmth(msgspec.Struct, frozen=True, rename="camel"):
    """How many warm prefixes are cached (``done``), of how many (``total``)."""

    done: _Count = 0
    total: _Count = 0
    problems: tuple[WarmProblem, ...] = ()


class AdapterProblem(msgspec.Struct, frozen=True, rename="camel"):
    """An adapter that a worker could not load, in its engine's words."""

    name: str
    detail: str = ""


class Adapters(msgspec.Struct, frozen=True, rename="camel"):
    """What of a worker's adapters is not as the pool has it."""

    problems: tuple[AdapterProblem, ...] = ()


class Member(msgspec.Struct, frozen=True, rename="camel"):
    """One rank of one worker."""

    name: str
    rank: int = 0
    phase: _Word | None = None
    phase_reason: str | None = None
    ready: bool = False
    vouched: bool = True
    suspended: str = ""
    stream: str = ""
    stale: bool = True
    indexed: bool = True
    epoch: str = ""
    warmth: Warmth = Warmth()
    held_blocks: _Count = 0
    block_bytes: _Count = 0
    cache_value: float = 0.0
    trust: float = 1.0
    key_refused: bool = False
    excluded: bool = False
    differences: tuple[Difference, ...] = ()
    blind: bool = False
    not_indexed: str = ""
    configuration: tuple[Difference, ...] = ()
    load: Load | None = None
    adapters: Adapters | None = None

    @property
    def doubted(self) -> bool:
        """Whether its engine serves little of what it claims to hold."""
        return self.trust < DOUBTED

    @property
    def warmed(self) -> bool:
        """Whether all warm prefixes are cached."""
        return self.warmth.done >= self.warmth.total

    @property
    def fresh(self) -> bool:
        """Whether the index has its present blocks: stream live, report not stale, indexed."""
        return self.stream == "live" and not self.stale and self.indexed

    @property
    def idle_bytes(self) -> int:
        """Idle cached blocks on each of its devices, in bytes."""
        return (self.load.blocks_idle or 0) * self.block_bytes if self.load else 0


class AdapterConflict(msgspec.Struct, frozen=True, rename="camel"):
    """An adapter whose name alone means something else: of pool ``owner``, "" where a rule forbids it."""

    adapter: str
    owner: str = ""
    nameless: bool = False


class PoolFacts(msgspec.Struct, frozen=True, rename="camel"):
    """One pool, as ``GET /admin/v1/pools/{namespace}/{name}`` answers."""

    contract: Contract | None = None
    hit_ratio: HitRatio = HitRatio()
    members: tuple[Member, ...] = ()
    adapter_conflicts: tuple[AdapterConflict, ...] = ()

    @property
    def block_bytes(self) -> int:
        """Bytes of a block on one device, from the first worker of the contract that reports any; 0 where none does."""
        ours = (member for member in self.members if not member.excluded)
        return next((member.block_bytes for member in ours if member.block_bytes), 0)

    @property
    def values(self) -> dict[str, float]:
        """Cache value by worker name, summed over its ranks."""
        worth: dict[str, float] = {}
        for member in self.members:
            worth[member.name] = worth.get(member.name, 0.0) + member.cache_value
        return worth


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a pool, or the reason why nothing is."""

    known: PoolFacts | None = None
    reason: Reason = Reason.NO_CONTROL_PLANE
    message: str = "CACHEFLEET_ADMIN_URL names no control plane to ask"


UNASKED: Final = Facts()


def parse(body: bytes) -> PoolFacts:
    """Parse an answer's JSON; FactsError where it is invalid."""
    try:
        return msgspec.json.decode(body, type=PoolFacts)
    except msgspec.MsgspecError as error:
        raise FactsError(str(error)[:MAX_TEXT]) from error


def essence(facts: Facts) -> object:
    """Equal for facts that differ only in figures that change all the time: blocks, ratios, values."""
    known = facts.known
    if known is None:
        return facts.reason
    return (
        known.contract,
        known.hit_ratio.value is None,
        known.hit_ratio.sampled,
        known.hit_ratio.by,
        known.block_bytes,
        known.adapter_conflicts,
        frozenset(map(_life, known.members)),
    )


def _life(member: Member) -> object:
    cold = tuple((problem.name, problem.kind) for problem in member.warmth.problems)
    said = (member.phase, member.epoch, member.warmed, cold, member.differences, member.configuration, member.adapters)
    wrong = (member.doubted, member.suspended, member.key_refused, member.blind, member.not_indexed, member.vouched)
    return (member.name, member.rank, member.ready, member.fresh, *said, *wrong)


def failed(facts: Facts) -> Member | None:
    """The first worker whose phase is Failed, None where there is none."""
    members = facts.known.members if facts.known else ()
    return next((member for member in members if member.phase == Phase.FAILED), None)


def suspended(facts: Facts) -> list[Member]:
    """The workers whose engines answer and serve nothing."""
    return [member for member in (facts.known.members if facts.known else ()) if member.suspended]


def key_refusing(facts: Facts) -> list[Member]:
    """The workers that refuse the gateway's key."""
    return [member for member in (facts.known.members if facts.known else ()) if member.key_refused]


def doubted(facts: Facts) -> Member | None:
    """The first worker whose engine serves little of what it claims to hold, None where there is none."""
    members = facts.known.members if facts.known else ()
    return next((member for member in members if member.doubted), None)


def unlike_asked(facts: Facts) -> tuple[Member, ...]:
    """Workers whose engine has something else than the pool asks for."""
    members = facts.known.members if facts.known else ()
    return tuple(member for member in members if member.configuration)


def unloaded(facts: Facts) -> tuple[str, AdapterProblem] | None:
    """The first adapter that a worker cannot load, with the worker's name; None where there is none."""
    members = facts.known.members if facts.known else ()
    return next(((one.name, problem) for one in members if one.adapters for problem in one.adapters.problems), None)


def unwarmed(facts: Facts) -> tuple[str, WarmProblem] | None:
    """The first warm prefix that a worker cannot cache, with the worker's name; None where there is none."""
    members = facts.known.members if facts.known else ()
    return next(((member.name, problem) for member in members for problem in member.warmth.problems), None)


def blind(facts: Facts) -> tuple[Member, ...]:
    """Workers whose engine serves from a cache of which the index holds nothing."""
    members = facts.known.members if facts.known else ()
    return tuple(member for member in members if member.blind)


def not_indexed(facts: Facts) -> Member | None:
    """The first worker on whose engine hits cannot be told from its blocks, None where there is none."""
    members = facts.known.members if facts.known else ()
    return next((member for member in members if member.not_indexed), None)


def excluded(facts: Facts) -> Member | None:
    """The first worker excluded because its contract differs from its pool's, None where there is none."""
    members = facts.known.members if facts.known else ()
    return next((member for member in members if member.excluded and member.differences), None)
