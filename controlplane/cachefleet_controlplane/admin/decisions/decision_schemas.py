"""Answers about decisions, as pydantic models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, get_type_hints

from msgspec import Struct
from msgspec.structs import fields
from pydantic import GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema

from cachefleet_controlplane.admin.schemas import Schema
from cachefleet_controlplane.routing.lost_tokens import LostCause
from cachefleet_controlplane.store.decision_records import AttemptRecord, CandidateRecord, EndedBy


class _ByFields:
    """Shows a record by its fields, in camel case."""

    def __get_pydantic_core_schema__(self, record: type[Struct], handler: GetCoreSchemaHandler) -> CoreSchema:
        hints = get_type_hints(record)
        shown: dict[str, Any] = {
            field.name: (hints[field.name], ... if field.required else field.default) for field in fields(record)
        }
        return handler(create_model(record.__name__, __base__=Schema, __doc__=record.__doc__, **shown))


Attempt = Annotated[AttemptRecord, _ByFields()]
Candidate = Annotated[CandidateRecord, _ByFields()]


class Shortfall(Schema):
    """The engine served so many tokens less from its cache than that worker was expected to."""

    cause: str
    """moved, rendered_differently, salted, restarted, evicted, stale or unknown."""
    why: str
    """The cause in words."""
    tokens: int
    worker: str


class PromptLoss(Schema):
    """First-seen tokens of one cause in the prompt, and where it leaves its nearest earlier one of the same tenant."""

    cause: str
    """time, id, tool_order, tools, system_prompt, image, parameters, salt, reasoning_dropped, history_dropped,
    history_edited, template, block_straddle, repeated, new or not_examined.
    """
    why: str
    """The cause in words."""
    mend: str = ""
    """What the prompt's author can do; empty where there is nothing to do."""
    tokens: int
    """So many would have been served without the change; parts are weighed by their bytes."""
    position: int | None = None
    """Tokens before the first block that is another; null where there is nothing to mend."""
    part: str = ""
    """The part that is another: tools, system, message, reasoning, tool_calls or media."""
    role: str = ""
    """Of its message."""
    index: int | None = None
    """Of its message among all, or its place among the tools, from 0."""


class LostTokens(Schema):
    """Tokens that were not served from cache for one cause."""

    cause: LostCause
    why: str
    """The cause in words."""
    tokens: int
    prompt: tuple[PromptLoss, ...] = ()
    """Of those first seen, the causes in the prompt, which add up to them."""


class Decision(Schema):
    """One request: where it went and why, and what the cache then did. Null is what nobody told."""

    id: str
    at: datetime
    model: str
    pool: str
    endpoint: str
    policy: str
    verdict: str
    reason: str
    why: str
    """The reason in words."""
    worker: str
    knowledge: str
    rung: str
    """Where the prompt's ids came from: client, render, tokenize or none; empty in old records."""
    render_failure: str | None
    """Why there are no ids."""
    tenant: str
    """Empty in old records."""
    isolation: str
    """Shared, or PerTenant: the tenant has blocks of its own, by a salt of its own."""
    salt_version: int | None
    """Null where blocks are shared."""
    prompt_tokens: int
    predicted_tokens: int
    cached_tokens: int | None
    completion_tokens: int | None
    ttft_seconds: float | None
    queued_seconds: float | None
    """How long it waited for room; null where it did not."""
    status: int
    attempts: tuple[Attempt, ...]
    candidates: tuple[Candidate, ...]
    """The chosen one, the second best, and those that hold most of the prompt."""
    candidates_left_out: int
    """Others there were; ``POST /admin/v1/explain`` shows all."""
    shortfall: Shortfall | None
    """Null where as much was cached as predicted, or the engine did not tell."""
    lost: tuple[LostTokens, ...] = ()
    """Tokens that were not served from cache, by cause, in the order of the prompt; empty where that is not known."""
    continuation: str | None
    """What became of the conversation's checkpoint (docs/continuation.md); null where no conversation was named."""
    request_id: str | None = None
    """The client's ``x-request-id``."""
    ended_by: EndedBy | None = None
    """Who ended the answer before it was whole: client, gateway or worker; null where it came whole, or none began."""


class DecisionList(Schema):
    """Decisions, last first."""

    items: tuple[Decision, ...]
    next: str | None = None
    """To be given as ``before`` for those that are older; null where there are none."""
    store_problem: str | None
    """Why only decisions not yet stored are shown; null while the store works."""
