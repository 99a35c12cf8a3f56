"""One finding: something that is wrong or worth knowing, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct

T = TypeVar("T")


class Severity(StrEnum):
    """How bad it is; the most severe first."""

    CRITICAL = "critical"
    """Requests fail, or would."""
    WARNING = "warning"
    """Requests are served, worse than they could be."""
    INFO = "info"
    """Worth knowing; nothing has to be done."""


class Finding(Struct, frozen=True, kw_only=True):
    """Something that is wrong or worth knowing."""

    severity: Annotated[str, Meta(extra_json_schema={"enum": [*Severity]})]
    subject: str
    """A kind and, where there are several, a name: "pool default/qwen", "worker default/qwen/qwen-0#0", "store"."""
    reason: str
    """One word for programs; where a condition of the pool says the same, the condition's reason."""
    message: str
    action: str
    """What to do."""
    docs: str
    """A page of the documentation with its anchor."""


class FindingList(Struct, frozen=True):
    """All findings, the most severe first; only those of severity info where all is well."""

    items: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Fault(Generic[T]):
    """What may be wrong with things of one kind, and its words for each."""

    present: Callable[[T], object]
    severity: Severity
    reason: str
    message: Callable[[T], str]
    action: str
    docs: str


def faults(groups: Iterable[Iterable[Fault[T]]], thing: T, subject: str) -> Iterator[Finding]:
    """Of each group the first fault that the thing has."""
    for group in groups:
        if fault := next((one for one in group if one.present(thing)), None):
            yield Finding(
                severity=fault.severity,
                subject=subject,
                reason=fault.reason,
                message=fault.message(thing),
                action=fault.action,
                docs=fault.docs,
            )


def operations(anchor: str) -> str:
    """A place in the operators' page."""
    return f"docs/operations.md#{anchor}"


def troubleshooting(anchor: str) -> str:
    """A place in the page of runbooks."""
    return f"docs/troubleshooting.md#{anchor}"
