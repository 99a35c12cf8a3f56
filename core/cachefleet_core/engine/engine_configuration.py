"""What a pool asks of an engine's configuration, what the engine says it has, and where the two differ. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

import msgspec

from cachefleet_core.budget import MIB, kv_cache_mib
from cachefleet_core.engine.engine_arguments import (
    HASH_ALGORITHM,
    adapter_path,
    caches_prefixes,
    loads_while_running,
)
from cachefleet_core.index_contract import Difference

if TYPE_CHECKING:  # agents start without the schema of pools
    from cachefleet_core.pool.spec import PoolSpec

MAX_SHOWN: Final = 128
"""Characters of a value that a difference shows."""
_PREFIX_CACHING: Final = "enable_prefix_caching"


class EngineConfiguration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An engine's configuration by vLLM's names, requested or real; None where not requested, or not reported."""

    served_model_name: str | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    enable_prefix_caching: bool | None = None
    prefix_caching_hash_algo: str | None = None
    kv_cache_memory_bytes: int | None = None
    """0 where the engine sizes its KV cache itself."""
    num_gpu_blocks_override: int | None = None
    """0 where the number of blocks follows from the memory."""
    tensor_parallel_size: int | None = None
    data_parallel_size: int | None = None
    enable_kv_cache_events: bool | None = None
    events_endpoint: str | None = None
    adapters: dict[str, str] | None = None
    """Adapters (LoRA) served from the start, by name, and where each was loaded from; "" where that is not asked."""


def asked_configuration(
    spec: PoolSpec, *, plugin: bool, events_endpoint: str, adapter_paths: Mapping[str, str] | None = None
) -> EngineConfiguration:
    """What the arguments that ``engine_arguments`` makes of a pool ask for.

    A block size that the pool does not name is left out: engines of hybrid models make blocks as large as they need.
    So are adapters where agents load them, which tell what they cannot load.
    """
    cached = caches_prefixes(spec, plugin=plugin)
    return EngineConfiguration(
        served_model_name=spec.model.name,
        max_model_len=spec.engine.max_model_len,
        block_size=spec.engine.block_size,
        enable_prefix_caching=cached,
        prefix_caching_hash_algo=HASH_ALGORITHM if cached else None,
        kv_cache_memory_bytes=kv_cache_mib(spec) * MIB,
        num_gpu_blocks_override=0,
        tensor_parallel_size=spec.engine.tensor_parallel_size,
        data_parallel_size=spec.engine.data_parallel_size,
        enable_kv_cache_events=True,
        events_endpoint=events_endpoint,
        adapters=_asked_adapters(spec, adapter_paths or {}) or None,
    )


def _asked_adapters(spec: PoolSpec, paths: Mapping[str, str]) -> dict[str, str]:
    """Adapters without the folder of a fetched revision, which is unknown before it is fetched."""
    if loads_while_running(spec):
        return {}
    return {
        one.name: "" if one.revision else adapter_path(one, paths.get(one.source, "")) for one in spec.model.adapters
    }


def differences(asked: EngineConfiguration, real: EngineConfiguration) -> tuple[Difference, ...]:
    """Fields in which an engine differs from the requested configuration, in order; unknown fields are left out."""
    names = (name for name in EngineConfiguration.__struct_fields__ if name != "adapters")
    pairs = [*((name, getattr(asked, name), getattr(real, name)) for name in names), _unlike(asked, real)]
    return tuple(
        Difference(name, _shown(wanted), _shown(found))
        for name, wanted, found in pairs
        if wanted is not None and found is not None and wanted != found
    )


def lacks_prefix_cache(found: Iterable[Difference]) -> bool:
    """Whether an engine has no prefix cache though its pool wants one, by its ``differences``: vLLM gives none to a
    model that can have none.
    """
    return any(each.field == _PREFIX_CACHING and each.expected == "true" for each in found)


def _unlike(asked: EngineConfiguration, real: EngineConfiguration) -> tuple[str, str | None, str | None]:
    """The adapters in which the two differ, as text."""
    wanted, found = asked.adapters, real.adapters
    if wanted is None or found is None:
        return "adapters", None, None
    both = wanted.keys() & found.keys()
    other = (wanted.keys() ^ found.keys()) | {name for name in both if wanted[name] not in {"", found[name]}}
    return "adapters", _listed(wanted, other), _listed(found, other)


def _listed(adapters: Mapping[str, str], names: AbstractSet[str]) -> str:
    shown = (f"{name}={adapters[name]}".removesuffix("=") for name in sorted(names & adapters.keys()))
    return ", ".join(shown) or ("none" if names else "")


def _shown(value: object) -> str:
    return str(value).lower()[:MAX_SHOWN] if isinstance(value, bool) else str(value)[:MAX_SHOWN]
