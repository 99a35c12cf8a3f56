"""Memory arithmetic of a pool's device: KV cache, budget for idle blocks, share for running requests.

All of it is per device. MiB are 2**20 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # agents start without the schema of pools
    from cachefleet_core.pool.spec import PoolSpec

MIB: Final = 1 << 20
RESERVED_BLOCKS: Final = 1
"""vLLM keeps one block for itself (its null block), which no request ever gets."""


class BudgetReason(StrEnum):
    """Why a budget is admitted, refused or not yet known; the reason of the condition BudgetAdmitted."""

    ADMITTED = "Admitted"
    EXCEEDS_KV_CACHE = "BudgetExceedsKVCache"
    NO_ROOM_FOR_REQUESTS = "RunningShareTooSmall"
    UNKNOWN_DEVICE_MEMORY = "DeviceMemoryUnknown"
    UNKNOWN_TOKEN_SIZE = "BytesPerTokenUnknown"  # noqa: S105  # a reason, not a credential


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """How the memory of one device is divided, in MiB, and whether that can serve."""

    kv_cache_mib: int
    budget_mib: int
    running_mib: int
    admitted: bool | None
    """None while the bytes of a token are unknown and no other check fails."""
    reason: BudgetReason
    message: str

    @property
    def refused(self) -> bool:
        """Whether it must not be put in force. That a token's size is unknown does not refuse it: workers report it."""
        return self.admitted is False or self.reason == BudgetReason.UNKNOWN_DEVICE_MEMORY


def plan_budget(spec: PoolSpec, kv_bytes_per_token: int | None = None) -> BudgetPlan:
    """Divide a device's memory as a pool asks.

    ``kv cache = memory - weights - activation - floor`` and ``running = kv cache - budget``, neither below 0; a
    disabled prefix cache has a budget of 0. Refused are a budget above the KV cache, and a running share in which
    one request of maxModelLen does not fit. ``kv_bytes_per_token`` is what a worker reported; it wins over the
    pool's own figure.
    """
    kv_cache = kv_cache_mib(spec)
    budget = budget_mib(spec)
    running = max(0, kv_cache - budget)
    admitted, reason, message = _judge(spec, kv_bytes_per_token or spec.model.kv_bytes_per_token, budget=budget)
    return BudgetPlan(kv_cache, budget, running, admitted, reason, message)


def kv_cache_mib(spec: PoolSpec) -> int:
    """The KV cache of one device, idle and running blocks together, in MiB; 0 while the device's memory is unknown."""
    device = spec.device
    return max(0, (device.memory_mib or 0) - spec.model.weights_mib - device.activation_mib - device.floor_mib)


def request_mib(spec: PoolSpec, kv_bytes_per_token: int) -> int:
    """The KV cache that serves one request of maxModelLen: whole blocks and vLLM's reserved one, in MiB, rounded up."""
    needed = -(-spec.engine.max_model_len // spec.block_size) + RESERVED_BLOCKS
    return mebibytes(needed, spec.block_size * kv_bytes_per_token)


def budget_mib(spec: PoolSpec) -> int:
    """The idle blocks that a device may keep, in MiB; 0 where the prefix cache is disabled."""
    return spec.prefix_cache.budget_mib if spec.prefix_cache.enabled else 0


def budget_blocks(spec: PoolSpec, *, block_bytes: int, total: int) -> int:
    """The idle blocks that an engine may keep of ``total``, which is 0 where that is not known.

    All of them where the engine does not tell the ``block_bytes`` of a block, unless it keeps none.
    """
    budget = budget_mib(spec)
    if not block_bytes:
        return total if budget else 0
    kept = blocks(budget, block_bytes)
    return min(kept, total) if total else kept


def blocks(mib: int, block_bytes: int) -> int:
    """The whole blocks in ``mib``: ``floor(mib * 2**20 / block bytes)``. ValueError for a block below one byte."""
    if mib < 0 or block_bytes < 1:
        raise ValueError(f"need MiB of at least 0 and a block of at least 1 byte, got {mib} and {block_bytes}")
    return mib * MIB // block_bytes


def mebibytes(count: int, block_bytes: int) -> int:
    """The MiB that ``count`` blocks take, rounded up."""
    return -(-count * block_bytes // MIB)


def _judge(spec: PoolSpec, bytes_per_token: int | None, *, budget: int) -> tuple[bool | None, BudgetReason, str]:
    if spec.device.memory_mib is None:
        message = "device.memoryMiB is not set, and no ResourceSlice has told it"
        return None, BudgetReason.UNKNOWN_DEVICE_MEMORY, message
    kv_cache = kv_cache_mib(spec)
    running = kv_cache - budget
    if running < 0:
        message = f"prefixCache.budgetMiB is {budget} MiB, the KV cache of a device is {kv_cache} MiB"
        message += ": lower it, or correct device and model.weightsMiB, from which that follows"
        return False, BudgetReason.EXCEEDS_KV_CACHE, message
    if bytes_per_token is None and running:
        message = "model.kvBytesPerToken is not set and no worker has reported it yet"
        return None, BudgetReason.UNKNOWN_TOKEN_SIZE, message
    needed = request_mib(spec, bytes_per_token) if bytes_per_token else 1
    if running < needed:
        request = f"one request of {spec.engine.max_model_len} tokens needs {needed} MiB of KV cache"
        room = f"{running} MiB are left for running requests"
        advice = "lower engine.maxModelLen" + (" or prefixCache.budgetMiB" if budget else "")
        return False, BudgetReason.NO_ROOM_FOR_REQUESTS, f"{request}, {room}: {advice}"
    return True, BudgetReason.ADMITTED, f"{budget} MiB idle and {running} MiB running in {kv_cache} MiB of KV cache"
