"""Whose a cached block is, and how long its request asks that it be kept: pure.

An owner is a tenant, known by the digest of its salt. Blocks without a salt, or of a request that was not seen, are of
NOBODY, which is an owner like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from cachefleet_core.continuation import KEEP_MEMBER, KEEP_SECONDS
from cachefleet_core.tenancy import salt_digest

NOBODY: Final = ""


@lru_cache(maxsize=4096)
def owner_of(salt: str | None) -> str:
    """The owner of blocks that are computed under a salt."""
    return salt_digest(salt) if salt else NOBODY


def keep_seconds(extra_args: Mapping[str, Any] | None) -> int:
    """How long a request asks that its prompt be kept; 0 for none, or for what is not one of KEEP_SECONDS."""
    value = extra_args.get(KEEP_MEMBER) if extra_args else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value in KEEP_SECONDS else 0


def largest(blocks_of: Mapping[str, int], most: int) -> dict[str, int]:
    """The owners with most blocks, at most ``most`` of them; NOBODY is left out."""
    named = ((owner, count) for owner, count in blocks_of.items() if owner and count)
    return dict(sorted(named, key=lambda one: (-one[1], one[0]))[:most])
