"""Requests and answers of other routers' queries: ``/overlap_scores`` as Dynamo's, ``/query`` as Mooncake's. Pure.

Only what can be answered by token ids is taken: this fleet's block keys are no hashes of theirs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from cachefleet_controlplane.fleet.block_holders import PrefixDepth
from cachefleet_controlplane.wire.errors import ApiError

DEFAULT: Final = "default"
"""Name of the tenant, and of the group, where a query names none, as with both projects."""
HOST_CREDIT: Final = 0.75
"""Of a block below the device, against one on it, in ``router_credit_blocks``; Dynamo's own default."""
_ID_BITS: Final = 53
"""Of a number that every JSON reader keeps exact."""
_NO_HASHES: Final = "must be left out: block keys of this fleet are keyed, ask by `token_ids`"
_NO_SALT: Final = "must be left out: tenants' salts are made for them, name the tenant in `tenant_id`"
_NO_MEDIA: Final = "must be left out: blocks with media cannot be asked for by token ids"
_NO_ADAPTERS: Final = "must be left out: blocks of adapters cannot be asked for by token ids"


class OverlapQuery(Struct, frozen=True):
    """Body of ``POST /overlap_scores``; members that are not here change nothing."""

    token_ids: Raw | UnsetType = UNSET
    model_name: str = ""
    routing_group: str = DEFAULT
    tenant_id: str = DEFAULT
    cache_salt: str | None = None
    lora_name: str | None = None
    block_hashes: Raw | UnsetType = UNSET
    sequence_hashes: Raw | UnsetType = UNSET
    mm_routing_info: Raw | UnsetType = UNSET
    block_mm_infos: Raw | UnsetType = UNSET

    @property
    def model(self) -> str:
        """The model, in its namespace where a group is named."""
        qualified = self.model_name and self.routing_group != DEFAULT
        return f"{self.routing_group}/{self.model_name}" if qualified else self.model_name

    def check(self) -> None:
        """ApiError 400 for a member that cannot be honoured and must not be ignored."""
        for name, told in (
            ("block_hashes", _NO_HASHES),
            ("sequence_hashes", _NO_HASHES),
            ("cache_salt", _NO_SALT),
            ("lora_name", _NO_ADAPTERS),
            ("mm_routing_info", _NO_MEDIA),
            ("block_mm_infos", _NO_MEDIA),
        ):
            _left_out(name, getattr(self, name), told)


class PrefixQuery(Struct, frozen=True):
    """Body of ``POST /query``; members that are not here change nothing."""

    model: str
    token_ids: Raw | UnsetType = UNSET
    block_size: int | None = None
    tenant_id: str = DEFAULT
    instance_id: str | None = None
    cache_salt: str | None = None
    lora_name: str | None = None
    lora_id: int | None = None

    def check(self) -> None:
        """ApiError 400 for a member that cannot be honoured and must not be ignored."""
        _left_out("cache_salt", self.cache_salt, _NO_SALT)
        _left_out("lora_name", self.lora_name, _NO_ADAPTERS)
        _left_out("lora_id", None if self.lora_id in {0, -1} else self.lora_id, _NO_ADAPTERS)


def _left_out(name: str, value: Any, told: str) -> None:
    given = bytes(value) not in {b"null", b"[]"} if isinstance(value, Raw) else value not in {None, "", UNSET}
    if given:
        raise ApiError(400, f"`{name}` {told}.", param=name)


overlap_query = msgspec.json.Decoder(OverlapQuery)
prefix_query = msgspec.json.Decoder(PrefixQuery)


class Found(Struct, frozen=True):
    """What the index has of a query's tokens."""

    block_size: int
    blocks: int
    """Whole blocks of the prompt."""
    held: Sequence[PrefixDepth]


def overlap_scores(found: Found) -> dict[str, Any]:
    """The answer of ``/overlap_scores``: blocks by worker and rank; a worker's number stays the same."""
    workers = sorted((_overlap(one) for one in found.held), key=lambda one: (one["worker_id"], one["dp_rank"]))
    return {
        "block_size": found.block_size,
        "num_blocks": found.blocks,
        "workers": workers,
        "shared_cache": {"enabled": False, "total_hit_blocks": 0, "ranges": [], "error": None},
    }


def _overlap(held: PrefixDepth) -> dict[str, Any]:
    both = held.device + held.below
    return {
        "worker_id": worker_number(held.worker),
        "dp_rank": held.rank,
        "device_blocks": held.device,
        "host_pinned_blocks": both,
        "disk_blocks": both,
        "host_pinned_extension_blocks": held.below,
        "disk_extension_blocks": 0,
        "shared_beyond_device_blocks": None,
        "router_credit_blocks": held.device + HOST_CREDIT * held.below,
        "worker": held.worker,
        "endpoint": held.url,
    }


def worker_number(worker: str) -> int:
    """The number by which a worker with all its ranks is named to who wants numbers: of its full name, 53 bits."""
    return int.from_bytes(hashlib.sha256(worker.encode()).digest()[:8], "big") >> (64 - _ID_BITS)


def prefix_hits(found: Found, tenant: str, instance: str | None = None) -> dict[str, Any]:
    """The answer of ``/query``: tokens by tenant and worker, ``CPU`` with what the host's memory completes."""
    workers: dict[str, list[PrefixDepth]] = {}
    for held in found.held:
        if instance is None or instance == held.worker:
            workers.setdefault(held.worker, []).append(held)
    return {tenant: {worker: _hits(ranks, found.block_size) for worker, ranks in sorted(workers.items())}}


def _hits(ranks: Sequence[PrefixDepth], size: int) -> dict[str, Any]:
    device = {str(one.rank): one.device * size for one in ranks}
    both = max((one.device + one.below) * size for one in ranks)
    below = any(one.below for one in ranks)
    gpu = max(device.values())
    return {"longest_matched": both, "GPU": gpu, "DP": device, "CPU": both if below else 0, "DISK": 0}
