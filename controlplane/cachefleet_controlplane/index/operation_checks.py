"""What an index checks of an operation before it changes anything. OperationError."""

from __future__ import annotations

from cachefleet_controlplane.index.protocol import OperationError
from cachefleet_core.block_keys import BlockKey, Tier
from cachefleet_core.report_frames import Removed, Stored


def keys_in(operation: Stored | Removed) -> list[BlockKey]:
    """Its keys; none of them may be 0."""
    try:
        keys = operation.unpack()
    except ValueError as error:
        raise OperationError(f"keys: {error}") from error
    if not keys:
        raise OperationError("keys: must not be empty")
    if 0 in keys:
        raise OperationError("keys: 0 is not a block key")
    return keys


def tier_in(operation: Stored | Removed) -> Tier:
    """Its tier."""
    try:
        return Tier(operation.tier)
    except ValueError as error:
        raise OperationError(f"tier: {error}") from error
