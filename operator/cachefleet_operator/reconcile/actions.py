"""What can be done about a pool: the words of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object that is never overwritten."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Apply:
    """Make an object say what the manifest says."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Annotate:
    """Note something on a pod; one that has gone needs no note, and a note that is refused stops nothing."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell of a change; told already is as good."""

    event: Manifest


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the operator's fields of a pool's status."""

    manifest: Manifest


Action = Create | Apply | Annotate | Emit | WriteStatus
