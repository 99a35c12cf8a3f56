"""The states of a batch, as OpenAI has them.

A batch is checked, run, and its files are written. A cancelled one, and one whose window is over, have files, too: of
what was answered, and of what was not. ``in_progress`` lasts until the files of a batch whose window is over are
written. A state that is over stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class BatchStatus(StrEnum):
    """Of a batch; the value is OpenAI's."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


class BatchEvent(StrEnum):
    """What happens to a batch."""

    VALID = "valid"
    """Its input file is sound."""
    INVALID = "invalid"
    ANSWERED = "answered"
    """None of its lines waits."""
    CANCEL = "cancel"
    WRITTEN = "written"
    """The files of what was answered, and of what was not, are written."""
    WRITTEN_LATE = "written_late"
    """The same, of a batch whose window is over."""


_NEXT: Final[Mapping[tuple[BatchStatus, BatchEvent], BatchStatus]] = MappingProxyType(
    {
        (BatchStatus.VALIDATING, BatchEvent.VALID): BatchStatus.IN_PROGRESS,
        (BatchStatus.VALIDATING, BatchEvent.INVALID): BatchStatus.FAILED,
        (BatchStatus.VALIDATING, BatchEvent.CANCEL): BatchStatus.CANCELLING,
        (BatchStatus.IN_PROGRESS, BatchEvent.ANSWERED): BatchStatus.FINALIZING,
        (BatchStatus.IN_PROGRESS, BatchEvent.CANCEL): BatchStatus.CANCELLING,
        (BatchStatus.IN_PROGRESS, BatchEvent.WRITTEN_LATE): BatchStatus.EXPIRED,
        (BatchStatus.FINALIZING, BatchEvent.WRITTEN): BatchStatus.COMPLETED,
        (BatchStatus.CANCELLING, BatchEvent.CANCEL): BatchStatus.CANCELLING,
        (BatchStatus.CANCELLING, BatchEvent.WRITTEN): BatchStatus.CANCELLED,
        (BatchStatus.CANCELLED, BatchEvent.CANCEL): BatchStatus.CANCELLED,
    }
)
OVER: Final = frozenset({BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})
"""Nothing happens to it any more."""


class StatusError(ValueError):
    """That cannot happen to a batch of this status."""


def step(status: BatchStatus, event: BatchEvent) -> BatchStatus:
    """Return the next status. StatusError, which changes nothing."""
    following = _NEXT.get((status, event))
    if following is None:
        raise StatusError(f"{event} of a batch that is {status}")
    return following
