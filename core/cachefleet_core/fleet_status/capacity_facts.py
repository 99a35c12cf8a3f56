"""What caches of another size would serve of a pool's requests, and advice by it, as a control plane reports them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from cachefleet_core.fleet_status.fields import Count, Ratio, Word

WORTH: Final = "worth"
NOTHING: Final = "nothing"
UNKNOWN: Final = "unknown"
MORE_WORKERS: Final = "moreWorkers"
MORE_BUDGET: Final = "moreBudget"
LESS_BUDGET: Final = "lessBudget"
FEWER_WORKERS: Final = "fewerWorkers"
FILLING: Final = "filling"
MEASURING: Final = "measuring"
JUDGED: Final = "judged"
VERDICTS: Final = (WORTH, NOTHING, UNKNOWN)
ACTIONS: Final = (MORE_WORKERS, MORE_BUDGET, LESS_BUDGET, FEWER_WORKERS)

PHASES: Final = (FILLING, MEASURING, JUDGED)

Verdict = Annotated[str, Meta(max_length=64, extra_json_schema={"enum": [*VERDICTS]})]
Action = Annotated[str, Meta(max_length=64, extra_json_schema={"enum": [*ACTIONS]})]
Phase = Annotated[str, Meta(max_length=64, extra_json_schema={"enum": [*PHASES]})]


class SizeFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """A number of workers and a budget, and what they would serve."""

    workers: Count
    budget_factor: float = 1.0
    """Times today's budget."""
    budget_mib: Count = field(name="budgetMiB", default=0)
    """Of each device; 0 where nothing bounds the engines."""
    hit_ratio: Ratio = 0.0
    computed_tokens_per_second: float = 0.0
    """Prompt tokens that all workers would compute, under today's requests."""


class TenantCurveFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """One tenant's part of a pool's curve: what its requests would be served at the pool's other sizes."""

    tenant: str
    requests: float
    """Of the curve's, as they count."""
    served_ratio: Ratio
    """What was served of their prompt tokens."""
    by_workers: tuple[Ratio, ...] = ()
    """Hit ratios, one for each size of the pool's ``byWorkers``."""
    by_budget: tuple[Ratio, ...] = ()
    """The same for ``byBudget``."""


class ConfirmationFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a simulation of the pool's latest requests gave for an advice, beside what the curve says."""

    at: Annotated[datetime, Meta(tz=True)]
    words: str = ""
    """All of it in a sentence."""
    requests: Count
    """That were simulated."""
    today: Ratio
    """Hit ratio of the simulated fleet as it is."""
    hit_ratio: Ratio
    """Of the simulated fleet as advised."""
    points: float
    """Percentage points that the simulation gains; less than none where it loses some."""
    error: float
    """Points that the curve foretells, less these."""


class AdviceFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """Something that could be done, and what it would bring."""

    action: Action
    worth: bool = False
    """Whether it is worth doing."""
    words: str = ""
    size: SizeFacts
    """What there would be then."""
    points: float = 0.0
    """Percentage points of hit ratio more; less than none where it costs some."""
    saved_tokens_per_second: float = 0.0
    """Prompt tokens that would not be computed any more; less than none where more would be."""
    saved_workers: float | None = None
    """Workers that computed these; null where none has measured its rate."""
    worth_per_hour: float | None = None
    """What that is worth at the pool's pricing.gpuHour, less the devices that are added; null without a price."""
    command: str = ""
    """The command that simulates it."""
    confirmed: ConfirmationFacts | None = None
    """What a simulation of it gave; null where none was asked for within the last hour."""


class ScaleInFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """Which worker goes first where the pool is scaled in by one, and what would be lost."""

    worker: str
    words: str = ""
    """The worker and what is lost, in a sentence."""
    ready: bool = True
    """Workers that are not ready go before all others."""
    held_blocks: Count = 0
    lost_blocks: Count = 0
    """Of these, what no other worker has: one that several have counts for its part."""
    lost_tokens: Count = 0
    hit_ratio: Ratio | None = None
    """With one worker less; null where the curve is not known, or none would be left."""
    computed_tokens_per_second: float | None = None


class SizeChangeFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """A change of the pool's size: what was foretold for the new one, and what came."""

    at: Annotated[datetime, Meta(tz=True)]
    words: str = ""
    """All of it in a sentence."""
    before: SizeFacts
    """The old size, and what was served at it."""
    foretold: SizeFacts
    """The new size, and what the curve of before said of it."""
    advised: Word = ""
    """The action of the advice that named this size; empty where the curve alone told of it."""
    phase: Phase = FILLING
    """While caches fill, or what came is measured, nothing has come of it yet."""
    requests: Count = 0
    """Of this phase."""
    hit_ratio: Ratio | None = None
    """That came; null before it is judged, as in what follows."""
    computed_tokens_per_second: float | None = None
    """Prompt tokens that were computed."""
    error: float | None = None
    """Hit ratio that was foretold, less the one that came."""
    computed_error: float | None = None
    """Computed tokens a second that were foretold, less those that came."""


class DesiredFitFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """Minutes in which the pool had as many workers as were desired when they began, and whether the load fitted."""

    minutes: Count = 0
    fitted_minutes: Count = 0
    fitted: Ratio | None = None
    """Their share; null where no minute was judged."""
    missed_minutes: dict[str, Count] = {}
    """The others by reason: queue, tokens, cache; one minute may have several."""


class CapacityFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """One pool: its hit curve, what to do by it, and why nothing is known where it is not."""

    pool: str
    verdict: Verdict = UNKNOWN
    words: str = ""
    """The verdict in a sentence."""
    requests: float = 0.0
    """That the curve is made of; those an hour old count half."""
    served_ratio: Ratio | None = None
    """What was served of their prompt tokens; null where there is no curve, as in what follows."""
    error: float | None = None
    """Hit ratio that the curve foretells for what there is, without regard to what was served, less that."""
    sampled: Ratio | None = None
    """Share of blocks that the curve is made of."""
    outline_age_seconds: float | None = None
    """Since its recorded requests were played through fleets of other sizes; null where the curve rests on reuse
    distances alone.
    """
    outline_error: float | None = None
    """Hit ratio that this gave for what there is, less what was served of the same requests."""
    now: SizeFacts | None = None
    by_workers: tuple[SizeFacts, ...] = ()
    by_budget: tuple[SizeFacts, ...] = ()
    by_tenant: tuple[TenantCurveFacts, ...] = ()
    """Of the tenants that asked lately, 32 at most, the one with most requests first."""
    advice: tuple[AdviceFacts, ...] = ()
    """What could be done, what is worth it first."""
    desired_workers: Count | None = None
    """How many workers it should have; null where none has measured its rate."""
    desired_reason: Word = ""
    changes: tuple[SizeChangeFacts, ...] = ()
    """The last changes of its size, the latest first."""
    desired_fit: DesiredFitFacts | None = None
    """Of the last 24 hours; null where none has measured its rate."""
    scale_in: ScaleInFacts | None = None
    """Null where it has no worker."""


class CapacityList(Struct, frozen=True, kw_only=True, rename="camel"):
    """All pools, as the replica that answers knows them by its own requests."""

    items: tuple[CapacityFacts, ...]
