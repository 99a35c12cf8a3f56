"""The values of a routing decision: prompt, candidates, scores, reasons, and the decision itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from cachefleet_controlplane.index.worker_id import WorkerId

STALE_AFTER_SECONDS: Final = 5.0
"""A report older than this says nothing about caches, and excludes no worker."""
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
    PREFIX_IN_FLIGHT = "prefix_in_flight"
    """As LONGEST_PREFIX, and none of it is reported yet: it is being computed there for a request just sent."""
    LOAD_OVER_PREFIX = "load_over_prefix"
    """Another holds more of the prompt, but waiting for it costs more than recomputing."""
    COLD = "cold"
    """No candidate holds any of the prompt."""
    LOAD_ONLY = "load_only"
    """The prompt's blocks are not known, or every report is stale."""
    SHORT_PROMPT = "short_prompt"
    """The prompt is shorter than a block, so nothing of it can be cached anywhere."""
    LEAST_LOADED = "least_loaded"
    ROUND_ROBIN = "round_robin"
    NO_ROOM = "no_room"
    """On every worker it would need more blocks than may be taken; also the refusal where waiting is not allowed."""
    OTHERS_FIRST = "others_first"
    """There is room, but waiting requests come before this one."""
    SENT_AHEAD = "sent_ahead"
    """There is room, but the worker has as much to do as its pool lets be sent ahead, in all or of one tenant."""
    QUEUE_FULL = "queue_full"
    """There is no room, and the queue is full."""
    QUEUE_TIMEOUT = "queue_timeout"
    """There was no room for as long as a request of its pool may wait."""
    WAIT_TOO_LONG = "wait_too_long"
    """There is no room, and there would be none in time for as long as it may wait."""
    DISPLACED = "displaced"
    """It waited, and a request of a higher priority, or of a tenant with fewer that wait, has taken its place."""
    TOO_LARGE = "too_large"
    """It needs more blocks than any worker has."""
    NO_READY_WORKER = "no_ready_worker"
    """No worker of the model is ready, or every one that is was tried."""
    FATAL_REQUEST = "fatal_request"
    """Engines ended twice while they computed it, or it is in doubt whether that was its fault."""
    NO_PREFILL_WORKER = "no_prefill_worker"
    """A Prefill worker has to compute the prompt first, and none is ready."""
    NOT_CACHED = "not_cached"
    """The client wants it only where some of it is cached, and the chosen worker holds none of it."""
    BELOW_THRESHOLD = "below_threshold"
    """The chosen Decode worker holds less of the prompt than the threshold, so a Prefill worker computes it first."""
    GATE_REFUSED = "gate_refused"
    """A Decode worker's gate refused it as too little cached, whatever the index said."""
    SPLIT_ROLES = "split_roles"
    """No threshold applies: in a fleet of Prefill and Decode pools prompts are computed by Prefill workers."""


_VERDICTS: Final = {
    Reason.NO_ROOM: Verdict.QUEUE,
    Reason.OTHERS_FIRST: Verdict.QUEUE,
    Reason.SENT_AHEAD: Verdict.QUEUE,
    Reason.TOO_LARGE: Verdict.REJECT,
    Reason.NO_READY_WORKER: Verdict.REJECT,
    Reason.NO_PREFILL_WORKER: Verdict.REJECT,
    Reason.FATAL_REQUEST: Verdict.REJECT,
    Reason.NOT_CACHED: Verdict.REJECT,
    Reason.BELOW_THRESHOLD: Verdict.PREFILL_FIRST,
    Reason.GATE_REFUSED: Verdict.PREFILL_FIRST,
    Reason.SPLIT_ROLES: Verdict.PREFILL_FIRST,
}


def verdict_of(reason: Reason) -> Verdict:
    """The verdict that goes with a reason; whoever lets requests wait may reject them later."""
    return _VERDICTS.get(reason, Verdict.ROUTE)


def full_name(pool: str, worker: str) -> str:
    """The fleet-wide name of a worker with all its ranks: names alone are unique in a pool only."""
    return f"{pool}/{worker}"


class Chunks(Struct, frozen=True):
    """A prompt's text: the packed keys of its chunks, and about how many tokens each of them has."""

    keys: bytes = b""
    tokens_each: float = 0.0


NO_CHUNKS: Final = Chunks()


class Prompt(Struct, frozen=True):
    """What is known of a request's prompt: 0 tokens and no keys where it could not be rendered."""

    tokens: int = 0
    keys: bytes = b""
    """Block keys, as ``blocks.pack_keys`` packs them."""
    block_size: int = 0
    max_tokens: int = 0
    knowledge: Knowledge = Knowledge.LOAD
    chunks: Chunks = NO_CHUNKS
    """Chunks of its text, even if its blocks are known; none where decisions may not rest on them."""
    paid_seconds: float = 0.0
    """Waiting that has paid for a copy of its prefix: ``paid_waiting``."""
    adapter: str = ""
    """The adapter that is asked for, by its workers' name; "" for the model itself."""
    paid_tokens: int = 0
    """How long that prefix is: nothing is taken off for who is expected to hold all of it."""
    continued: bool = False
    """It is the prompt of a request that was counted before, and what was produced for it: the rest is asked for."""
    prompts: int = 1
    """Prompts of the request, of which this is the first; the others are taken to be as long."""
    choices: int = 1
    """Answers to each of them."""
    most_blocks: int = 0
    """Blocks that all of them count for at most, since an engine computes one after the other; 0 for no such bound."""


class CandidateScore(Struct, frozen=True):
    """The cost of one candidate in seconds, with every part of it. Never changed."""

    worker: str
    id: WorkerId
    pool: str
    matched_blocks: int
    predicted_tokens: int
    """Tokens of the prompt that will come from its cache, by the index alone, those to be loaded included."""
    expected_tokens: int
    """The same, with the blocks of prompts just sent there."""
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
    needed_blocks: int
    """Blocks it would take of the free ones: all it needs, less those of its prompt in use there for certain."""
    free_blocks: int | None
    """Blocks it may take; None where the worker does not tell."""
    reserved_blocks: int
    """Blocks that stay free in addition."""
    total_blocks: int | None
    fits: bool
    worth_tokens: int = 0
    """Of the tokens to evict, those that will be computed again because of it."""
    others_seconds: float = 0.0
    """What it makes others wait, in all."""
    paid_seconds: float = 0.0
    """How much of what it costs others had been paid for by waiting."""
    loaded_tokens: int = 0
    """Of the expected ones, those loaded from the host's memory or a disk."""
    loading_seconds: float = 0.0
    loading_measured: bool = False
    """Whether a worker has measured how fast it loads; else it is assumed."""
    adapter_seconds: float = 0.0
    """Loading of the adapter onto its device, which is full of others; assumed."""


class NextChoice(Struct, frozen=True, gc=False):
    """A worker that is chosen where those before are not to be had; ``made`` gives the decision for it."""

    full_name: str
    url: str
    made: Callable[[], Decision]


class Decision(Struct, frozen=True, kw_only=True):
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
    """Tokens of the prompt that the chosen worker's reports promise."""
    forecast_tokens: int = 0
    """Those that its engine will serve from its cache: the predicted ones, and what requests ahead leave there."""
    matched_blocks: int = 0
    """Blocks of the prompt that the index says the chosen worker holds."""
    expected_tokens: int = 0
    """As the predicted ones, with the blocks of prompts just sent to the chosen worker."""
    elsewhere_blocks: int = 0
    """These two: the most blocks of the prompt that another leading candidate holds, and the most tokens of it that
    another is expected to hold.
    """
    elsewhere_tokens: int = 0
    loaded_tokens: int = 0
    """Of the expected ones, those to be loaded from below the device."""
    seconds: float = 0.0
    """What the request costs on the chosen worker, its wait there among it."""
    report_age: float | None = None
    """Seconds since the chosen worker's last report; None where its blocks are not known."""
    uncached_tokens: int = 0
    """Prompt tokens that the chosen worker has to compute; all of them where none was chosen."""
    prefix_tokens: int = 0
    """The most that any candidate is expected to hold of the prompt, where its blocks decided."""
    excess_seconds: float = 0.0
    """How much longer the chosen one's queue is than the shortest, where it was chosen for holding that."""
    paid_seconds: float = 0.0
    """Waiting that had paid for a copy of that prefix."""
    queue_seconds: float = 0.0
    """The chosen worker's queue: tokens to be computed before, over its rate; 0 where none was chosen."""
    candidates: int = 0
    """How many there were."""
    largest_blocks: int = 0
    """Blocks of the largest candidate, where none was chosen; 0 where none tells."""
    leading: Sequence[CandidateScore] = ()
    """The chosen and the second best candidate, then those that hold most of the prompt: eight at most."""
    scores: Sequence[CandidateScore] = ()
    """All candidates, where they were asked for."""
    next: Sequence[NextChoice] = ()
    """Who is chosen of the same pool where those before are not to be had, where that was asked for."""
    at: float = 0.0
    """Seconds on the caller's clock."""

    @property
    def full_name(self) -> str:
        """The chosen worker with all its ranks, as ``full_name`` names it."""
        return full_name(self.pool, self.worker)


def unplaced(prompt: Prompt, reason: Reason, *, policy: RoutingPolicy, knowledge: Knowledge, at: float) -> Decision:
    """A decision without a worker, with the verdict that goes with ``reason``."""
    return Decision(
        verdict=verdict_of(reason),
        reason=reason,
        policy=policy,
        knowledge=knowledge,
        prompt_tokens=prompt.tokens,
        uncached_tokens=prompt.tokens,
        at=at,
    )


def held_back(decision: Decision) -> Decision:
    """The decision for a request that must wait behind others: ROUTE becomes OTHERS_FIRST, other verdicts stay."""
    if decision.verdict is not Verdict.ROUTE:
        return decision
    return turned_away(decision, Reason.OTHERS_FIRST)


def turned_away(decision: Decision, reason: Reason) -> Decision:
    """The decision without its worker, with ``reason`` and the verdict that goes with it."""
    return replace(
        decision,
        verdict=verdict_of(reason),
        reason=reason,
        worker="",
        id=NOBODY,
        pool="",
        url="",
        rank=0,
        predicted_tokens=0,
        forecast_tokens=0,
        matched_blocks=0,
        expected_tokens=0,
        loaded_tokens=0,
        seconds=0.0,
        report_age=None,
        uncached_tokens=decision.prompt_tokens,
        queue_seconds=0.0,
    )
