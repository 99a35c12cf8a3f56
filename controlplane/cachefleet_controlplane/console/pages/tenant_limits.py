"""The form for a tenant's limits: its fields, their ranges, and what was sent as a change for the admin API. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_controlplane.store.tenant_records import LOWEST_PRIORITY, MAX_NUMBER


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitField:
    """One number of the form."""

    name: str
    """As the admin API has it."""
    label: str
    least: int
    most: int
    optional: bool = True
    """It may be empty: no limit."""

    def parsed(self, text: str) -> int | None:
        """The number, None for an empty field. ValueError, which says what is allowed."""
        text = text.strip()
        if not text and self.optional:
            return None
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(self.most)) else -1
        if not self.least <= number <= self.most:
            raise ValueError(f"{self.label}: {self.allowed}.")
        return number

    @property
    def allowed(self) -> str:
        """What may be sent, in words."""
        return f"a whole number from {self.least:,} to {self.most:,}{', or nothing for no limit' * self.optional}"


FIELDS: Final = (
    LimitField(name="tokensPerMinute", label="Tokens a minute", least=1, most=MAX_NUMBER),
    LimitField(name="requestsAtOnce", label="Requests at once", least=1, most=MAX_NUMBER),
    LimitField(name="priority", label="Priority", least=0, most=LOWEST_PRIORITY, optional=False),
)


def change_of(form: Mapping[str, str]) -> tuple[Mapping[str, int | None], Sequence[str]]:
    """What a form changes, and what is wrong with it, a sentence for each field. A field that it lacks stays."""
    wanted: dict[str, int | None] = {}
    problems = []
    for field in FIELDS:
        try:
            if field.name in form:
                wanted[field.name] = field.parsed(form[field.name])
        except ValueError as error:
            problems.append(str(error))
    return wanted, problems


def shown_values(tenant: Mapping[str, Any], form: Mapping[str, str] | None) -> Mapping[str, str]:
    """What stands in the fields: what was sent, where that was refused, else what holds."""
    held = {field.name: "" if tenant[field.name] is None else str(tenant[field.name]) for field in FIELDS}
    return held | {name: form[name] for name in held if form and name in form}
