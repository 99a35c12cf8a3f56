"""The form for a tenant's limits: its fields, their ranges, and what was sent as a change for the admin API. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_controlplane.store.tenant_records import LOWEST_PRIORITY, MAX_WEIGHT
from cachefleet_core.fleet_status.tenant_limits import LEAST_SPEND, Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitField:
    """One number of the form."""

    name: str
    """As the admin API has it."""
    label: str
    least: float
    most: int
    optional: bool = True
    """It may be empty: no limit."""
    step: float = 1
    """What its values are multiples of: 1, or a part of the currency."""

    def parsed(self, text: str) -> float | None:
        """The number, None for an empty field. ValueError, which says what is allowed."""
        text = text.strip()
        if not text and self.optional:
            return None
        number = self._number(text)
        if not self.least <= number <= self.most:
            raise ValueError(f"{self.label}: {self.allowed}.")
        return number

    def _number(self, text: str) -> float:
        """-1 where it is none."""
        whole, _, part = text.partition(".")
        digits = whole + part
        if not (digits.isascii() and digits.isdecimal() and len(whole) <= len(str(self.most)) and len(part) <= _PLACES):
            return -1
        return (-1 if "." in text else int(text)) if self.step == 1 else float(text)

    def shown(self, value: float | None) -> str:
        """What holds, in words."""
        return "no limit" if value is None else f"{value:,}" if isinstance(value, int) else _text(value)

    @property
    def lowest(self) -> str:
        """The least value, as a form has it."""
        return _text(self.least)

    @property
    def allowed(self) -> str:
        """What may be sent, in words."""
        kind, least = ("whole number", f"{self.least:,}") if self.step == 1 else ("number", self.lowest)
        return f"a {kind} from {least} to {self.most:,}{', or nothing for no limit' * self.optional}"


_PLACES: Final = 6
FIELDS: Final = (
    *(
        LimitField(
            name=limit.field,
            label=limit.words.capitalize(),
            least=limit.least,
            most=limit.most,
            step=LEAST_SPEND if limit.unit == "spend" else 1,
        )
        for limit in Limit
    ),
    LimitField(name="priority", label="Priority", least=0, most=LOWEST_PRIORITY, optional=False),
    LimitField(name="weight", label="Weight", least=1, most=MAX_WEIGHT, optional=False),
)


def change_of(form: Mapping[str, str]) -> tuple[Mapping[str, float | None], Sequence[str]]:
    """What a form changes, and what is wrong with it, a sentence for each field. A field that it lacks stays."""
    wanted: dict[str, float | None] = {}
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
    held = {field.name: "" if tenant[field.name] is None else _text(tenant[field.name]) for field in FIELDS}
    return held | {name: form[name] for name in held if form and name in form}


def _text(number: float) -> str:
    """A number as it stands in a field: 25.5, 0.000001."""
    return str(number) if isinstance(number, int) else f"{number:.{_PLACES}f}".rstrip("0").rstrip(".")
