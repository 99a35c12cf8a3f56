"""Which policy is in force on a worker: pure."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cachefleet_core.reports import Policy


def supersedes(new: Policy, current: Policy | None, pool: str) -> bool:
    """Whether ``new`` is for this pool and not older than ``current``; a pool made anew starts its generations anew."""
    if new.pool != pool:
        return False
    return current is None or new.uid != current.uid or new.generation >= current.generation


def read_policy(path: Path) -> Policy:
    """The policy in a JSON file. OSError where it cannot be read, ValueError where it is no policy."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Policy)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
