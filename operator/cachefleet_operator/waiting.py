"""Why a leading operator does not reconcile: logged, and shown by its probe and a metric."""

from __future__ import annotations

import logging
from typing import Protocol

log = logging.getLogger(__name__)


class Shown(Protocol):
    """Shows whether an operator that leads waits for something."""

    def waits(self, *, yes: bool) -> None: ...


class Waiting:
    """The reason, "" where nothing keeps it; a new one is logged once."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self.reason = ""

    def become(self, reason: str) -> None:
        """Record the present reason for waiting, "" for none."""
        if reason and reason != self.reason:
            log.warning("waiting: %s", reason)
        elif self.reason and not reason:
            log.info("no longer waiting: %s", self.reason)
        self.reason = reason
        self._shown.waits(yes=bool(reason))
