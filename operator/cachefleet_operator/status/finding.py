"""One condition of a pool, before it has timestamps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition without its timestamps."""

    type: str
    status: str
    reason: str
    message: str
