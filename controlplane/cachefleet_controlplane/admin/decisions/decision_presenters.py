"""Converts decision records to the admin API's answers. Pure."""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

from cachefleet_controlplane.admin.decisions import decision_schemas
from cachefleet_controlplane.routing import reason_texts
from cachefleet_controlplane.routing.lost_tokens import LostCause
from cachefleet_controlplane.store.decision_records import DecisionRecord

_CAUSES: Final = frozenset(LostCause)
_FIELDS: Final = tuple(field.name for field in fields(DecisionRecord))
_of_record: Final = attrgetter(*_FIELDS)


def decision(record: DecisionRecord) -> decision_schemas.Decision:
    """A decision record, with its reason and causes in words."""
    told: dict[str, Any] = dict(
        zip(_FIELDS, _of_record(record), strict=True)
    )  # asdict copies all, in ten times as long
    told |= {"at": datetime.fromtimestamp(record.at, UTC), "why": reason_texts.why(record.reason)}
    if record.shortfall is not None:
        told["shortfall"] = asdict(record.shortfall) | {"why": reason_texts.why_short(record.shortfall.cause)}
    told["lost"] = [lost_tokens(one.cause, one.tokens) for one in record.lost]
    return decision_schemas.Decision.model_validate(told)


def lost_tokens(cause: str, tokens: int) -> decision_schemas.LostTokens:
    """Tokens of one cause, with the cause in words; one that this version does not know is unknown."""
    known = LostCause(cause) if cause in _CAUSES else LostCause.UNKNOWN
    return decision_schemas.LostTokens(cause=known, why=reason_texts.why_lost(known), tokens=tokens)
