"""One agent's connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import cachefleet_native

from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.report_frames import DownFrame


class Link(Protocol):
    """Sends to one connected agent; neither method waits."""

    def send(self, frame: DownFrame) -> None:
        """Queue a frame; may close the connection instead."""

    def close(self, code: str, reason: str) -> None:
        """Close the connection; queued frames may be lost."""


@dataclass(slots=True)
class Connection:
    """One agent's connection: its worker, and its streams by rank."""

    number: int
    link: Link
    pod: str = ""
    """The uid of the pod whose token it has, "" outside of Kubernetes."""
    worker: tuple[str, str] | None = None
    """Pool and worker name; None before the first Hello."""
    ranks: dict[int, Worker] = field(default_factory=dict)
    tap: cachefleet_native.ReportTap | None = None
    """Takes Deltas of live streams out of it; None where it did not come through the native server."""
    warmed_epoch: str | None = None
    """The epoch in which it was last sent the standing Warm."""
