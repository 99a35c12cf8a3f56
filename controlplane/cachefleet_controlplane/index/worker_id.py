"""The fleet-wide id of one rank of one worker."""

from __future__ import annotations

from typing import NewType

WorkerId = NewType("WorkerId", str)


def worker_id(pool: str, worker: str, rank: int = 0) -> WorkerId:
    """The id ``namespace/pool/worker#rank``; ``pool`` is "namespace/name"."""
    return WorkerId(f"{pool}/{worker}#{rank}")
