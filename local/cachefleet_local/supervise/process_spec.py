"""One process to supervise, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

SOCKETS_VARIABLE: Final = "CACHEFLEET_SOCKETS"
"""Descriptors of the sockets that a process is given, as the control plane reads them."""


class Kind(StrEnum):
    """Kind of a supervised process."""

    CONTROL_PLANE = "control plane"
    ENGINE = "engine"
    AGENT = "agent"
    ENVOY = "Envoy"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process to supervise. ``environment`` is added to the supervisor's own; not shown, it may hold keys."""

    name: str
    kind: Kind
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    log: Path
    ready_url: str
    ports: tuple[int, ...] = ()
    """Ports whose listening sockets it is given (SOCKETS_VARIABLE), and which stay open while it is started again."""
    without: tuple[str, ...] = ()
    """Names of variables that it must not inherit."""
    after: tuple[str, ...] = ()
    """Names of processes that must be ready before this one is started."""
    heavy: bool = False
    """Whether its start keeps a processor busy for long, so that only a few may start at a time."""
    start_seconds: float = 60.0
    """Not ready after this long, while those in ``after`` were ready, means that it hangs."""
    grace_seconds: float = 5.0
    """Between asking it to end and killing it."""
