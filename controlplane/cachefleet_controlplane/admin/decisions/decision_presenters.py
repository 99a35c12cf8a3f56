"""Converts decision records to the admin API's answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from msgspec.structs import asdict

from cachefleet_controlplane.admin.decisions import decision_schemas
from cachefleet_controlplane.prompt_causes.mends import WHY, mend
from cachefleet_controlplane.prompt_causes.prompt_cause import PromptCause
from cachefleet_controlplane.routing import reason_texts
from cachefleet_controlplane.routing.lost_tokens import LostCause
from cachefleet_controlplane.store.decision_records import DecisionRecord, PromptLossRecord

_CAUSES: Final = frozenset(LostCause)
_PROMPT_CAUSES: Final = frozenset(PromptCause)


def decision(record: DecisionRecord) -> decision_schemas.Decision:
    """A decision record, with its reason and causes in words."""
    shown: dict[str, Any] = asdict(record)
    shown |= {"at": datetime.fromtimestamp(record.at, UTC), "why": reason_texts.why(record.reason)}
    if record.shortfall is not None:
        shown["shortfall"] = asdict(record.shortfall) | {"why": reason_texts.why_short(record.shortfall.cause)}
    shown["lost"] = [lost_tokens(lost.cause, lost.tokens, lost.prompt) for lost in record.lost]
    return decision_schemas.Decision.model_validate(shown)


def lost_tokens(cause: str, tokens: int, prompt: Iterable[PromptLossRecord] = ()) -> decision_schemas.LostTokens:
    """Tokens of one cause, with the cause in words; one that this version does not know is unknown."""
    known = LostCause(cause) if cause in _CAUSES else LostCause.UNKNOWN
    shown = tuple(map(prompt_loss, prompt))
    return decision_schemas.LostTokens(cause=known, why=reason_texts.why_lost(known), tokens=tokens, prompt=shown)


def prompt_loss(loss: PromptLossRecord) -> decision_schemas.PromptLoss:
    """First-seen tokens of one cause in the prompt, with cause and mend in words."""
    known = PromptCause(loss.cause) if loss.cause in _PROMPT_CAUSES else PromptCause.NOT_EXAMINED
    words = {"why": WHY[known], "mend": mend(known, loss.part)}
    return decision_schemas.PromptLoss.model_validate(asdict(loss) | {"cause": known} | words)
