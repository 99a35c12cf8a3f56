"""Which decisions are asked for, as query parameters that the list, the export and the stream share."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Final

from pydantic import AfterValidator, AwareDatetime, ConfigDict, Field, StringConstraints

from cachefleet_controlplane.admin.schemas import Schema
from cachefleet_controlplane.routing.cache_shortfall import Cause
from cachefleet_controlplane.store.decision_filter import ANY, DecisionFilter, RequestOutcome

_CONDITIONS: Final = tuple(field.name for field in fields(DecisionFilter))
_TIMES: Final = ("since", "until")
Text = Annotated[str, StringConstraints(min_length=1, max_length=512)]
SHORTFALLS: Final = (ANY, *(cause.value for cause in Cause))
"""What may be asked for of shortfalls."""


def _known(shortfall: str) -> str:
    if shortfall not in SHORTFALLS:
        raise ValueError(f"must be one of {', '.join(SHORTFALLS)}")
    return shortfall


Shortfall = Annotated[str, AfterValidator(_known), Field(json_schema_extra={"enum": list(SHORTFALLS)})]


class LiveQuery(Schema):
    """Conditions on decisions; all that are given must hold."""

    model_config = ConfigDict(extra="forbid")

    model: Text | None = Field(None, description="The name that was asked for.")
    request_id: Text | None = Field(None, description="The client's `x-request-id`.")
    tenant: Text | None = None
    outcome: RequestOutcome | None = Field(None, description="What became of it, by its status and by who ended it.")
    shortfall: Shortfall | None = Field(None, description="The cause of a shortfall, or `any`.")
    pool: Text | None = Field(None, description="As namespace/name.")
    worker: Text | None = Field(None, description="Its name, or namespace/pool/name.")

    def wanted(self) -> DecisionFilter:
        """The filter of these conditions."""
        given = {name: getattr(self, name) for name in _CONDITIONS if hasattr(self, name)}
        return DecisionFilter(**given | {name: at.timestamp() for name in _TIMES if (at := given.get(name))})


class DecisionQuery(LiveQuery):
    """Conditions on decisions that were made."""

    since: AwareDatetime | None = Field(None, description="Made then or later; with a time zone.")
    until: AwareDatetime | None = Field(None, description="Made before.")


class PageQuery(DecisionQuery):
    """Conditions on decisions that were made, and which page of them."""

    before: Text | None = Field(None, description="`next` of the page before: goes on with what is older.")
    limit: int = Field(50, ge=1, le=500, description="How many at most.")


class ExportQuery(DecisionQuery):
    """Conditions on decisions that were made, and how many."""

    limit: int = Field(10_000_000, ge=1, le=10_000_000, description="How many at most; default: all.")
