"""What a decision is made of, and the decision itself, as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import nsmallest
from typing import Final, overload

from cachefleet_controlplane.block_index import WorkerId

STALE_AFTER_SECONDS: Final = 5.0
"""A report older than this says nothing about caches any more, and excludes nobody."""
LEADING: Final = 8
"""Candidates of a decision that are remembered: all of a large fleet would cost more than to decide."""
NOBODY: Final = WorkerId("")


class RoutingPolicy(StrEnum):
    """What decides: caches and load, load alone, or the order of arrival."""

    CACHE_AWARE = "cacheAware"
    LEAST_LOADED = "leastLoaded"
    ROUND_ROBIN = "roundRobin"


class Knowledge(StrEnum):
    """What a decision knew of the prompt: its exact blocks, an estimate of them, or nothing."""

    EXACT = "exact"
    APPROXIMATE = "approximate"
    LOAD = "load"


class Verdict(StrEnum):
    """What to do with a request."""

    ROUTE = "route"
    PREFILL_FIRST = "prefill_first"
    QUEUE = "queue"
    REJECT = "reject"


class Reason(StrEnum):
    """Why the chosen worker was chosen, or why none was."""

    LONGEST_PREFIX = "longest_prefix"
    """No candidate holds more of the prompt than the chosen one."""
    LOAD_OVER_PREFIX = "load_over_prefix"
    """Another holds more of the prompt, but waiting for it costs more than recomputing."""
    COLD = "cold"
    """Nobody holds any of the prompt."""
    LOAD_ONLY = "load_only"
    """The prompt's blocks are not known, or every report is stale."""
    LEAST_LOADED = "least_loaded"
    ROUND_ROBIN = "round_robin"
    NO_FIT = "no_fit"
    """The request fits on no worker now; sent to the one that will be done soonest."""
    NO_READY_WORKER = "no_ready_worker"


def full_name(pool: str, worker: str) -> str:
    """One worker with all its ranks, fleet-wide: names alone are unique in a pool only."""
    return f"{pool}/{worker}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is known of a request: tokens 0 and no keys where it could not be rendered."""

    tokens: int = 0
    keys: bytes = b""
    """Of its blocks, as ``blocks.pack_keys`` packs them."""
    block_size: int = 0
    max_tokens: int = 0
    knowledge: Knowledge = Knowledge.LOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateView:
    """One rank of one worker as a decision sees it; None is what nobody has told."""

    worker: str
    id: WorkerId
    pool: str
    url: str
    rank: int = 0
    matched_blocks: int = 0
    """Longest consecutive prefix that the index says is held."""
    sent_blocks: int = 0
    """Longest prefix that prompts just sent there have in common with this one."""
    report_age: float | None = None
    queued_tokens: int = 0
    inflight_tokens: int = 0
    tokens_per_second: float | None = None
    inter_token_seconds: float | None = None
    batched_tokens: int = 0
    blocks_free: int | None = None
    """Blocks a new request may take, idle cached ones included, less what is under way."""
    blocks_blank: int | None = None
    """Of these, blocks that hold nothing."""
    requests: int = 0
    """Running, waiting and under way."""
    last_used: int = 0
    """Number of the last decision for it, 0 where there was none."""

    @property
    def stale(self) -> bool:
        return self.report_age is None or self.report_age > STALE_AFTER_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateScore:
    """How one candidate was judged: every part of its cost."""

    worker: str
    id: WorkerId
    pool: str
    matched_blocks: int
    predicted_tokens: int
    """Tokens of the prompt that will come from its cache, by the index alone."""
    expected_tokens: int
    """The same with the blocks of prompts just sent there."""
    queued_tokens: int
    inflight_tokens: int
    uncached_tokens: int
    evicted_tokens: int
    tokens_per_second: float
    inter_token_seconds: float
    batched_tokens: int
    requests: int
    seconds: float
    report_age: float | None
    fits: bool


def leading_places(known: Sequence[tuple[int, int]], first: int, second: int | None) -> list[int]:
    """The candidates that tell most of a decision, at most LEADING of them, as places among all.

    The chosen and the second best one, then those that hold most of the prompt, the less busy ones before others.
    ``known`` are the matched blocks and the requests of each.
    """
    best = [first] if second is None else [first, second]
    order = nsmallest(LEADING, range(len(known)), key=lambda place: (-known[place][0], known[place][1]))
    return (best + [place for place in order if place not in best])[:LEADING]


class LaterScores(Sequence[CandidateScore]):
    """So many scores, made when somebody looks at one of them."""

    def __init__(self, count: int, make: Callable[[], Sequence[CandidateScore]]) -> None:
        self._count = count
        self._make: Callable[[], Sequence[CandidateScore]] | None = make
        self._made: Sequence[CandidateScore] = ()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> CandidateScore: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[CandidateScore]: ...
    def __getitem__(self, place: int | slice) -> CandidateScore | Sequence[CandidateScore]:
        return self._all()[place]

    def _all(self) -> Sequence[CandidateScore]:
        if self._make is not None:
            self._made, self._make = self._make(), None
        return self._made


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A verdict and everything needed to explain it; worker and url are empty where none was chosen."""

    verdict: Verdict
    reason: Reason
    policy: RoutingPolicy
    knowledge: Knowledge
    worker: str = ""
    id: WorkerId = NOBODY
    pool: str = ""
    url: str = ""
    rank: int = 0
    prompt_tokens: int = 0
    predicted_tokens: int = 0
    uncached_tokens: int = 0
    """Tokens of the prompt that the chosen one has to compute; all of them where none was chosen."""
    leading: Sequence[CandidateScore] = ()
    """Of the candidates that tell most, as ``leading_places`` says; made when somebody looks."""
    scores: Sequence[CandidateScore] = ()
    """Of all candidates; may be made when somebody looks."""
    at: float = 0.0
    """On the clock that was given."""

    @property
    def full_name(self) -> str:
        """The chosen worker's, whatever its rank."""
        return full_name(self.pool, self.worker)
