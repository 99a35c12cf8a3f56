"""Objects of ``/v1/models``: OpenAI's members, and the capabilities of the fleet that serves the model. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from cachefleet_controlplane.gateway.apis.request_info import GENERATING, Endpoint
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.pool.policy import PreemptionPolicy
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.report_frames import Hello

OWNER: Final = "cachefleet"
_POOLING: Final = (Endpoint.EMBEDDINGS,)
_RUNNER: Final = "--runner"


def card(model: ServedModel, announced: Sequence[Hello]) -> dict[str, object]:
    """Return one model's object; ``announced`` are the Hellos of its ready workers.

    An adapter names its model as ``parent``.

    A capability is true where every one of them has it, so that it does not depend on routing.
    """
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": OWNER,
        "max_model_len": _longest(model, announced),
        **({"parent": model.base} if model.is_adapter else {}),
        "capabilities": {
            "endpoints": endpoints(model.declared),
            "prefix_caching": all(pool.spec.prefix_cache.enabled for pool in model.declared),
            "cache_hit_threshold": _all_have(announced, "gate"),
            "hand_back": _all_have(announced, "preemption") and all(map(_hands_back, model.declared)),
            "workers": len({(hello.pool, hello.worker) for hello in announced}),
        },
    }


def endpoints(pools: Iterable[PrefixCachePool]) -> list[str]:
    """Return the paths that pools serve, as they are declared: a pooling runner generates nothing."""
    pooling = {_pools(pool.spec.engine.extra_args) for pool in pools}
    return [*(GENERATING if False in pooling else ()), *(_POOLING if True in pooling else ())]


def _longest(model: ServedModel, announced: Sequence[Hello]) -> int | None:
    """In tokens, as the workers announce it; as declared where none has."""
    return max((hello.max_model_len for hello in announced), default=0) or model.max_model_len


def _all_have(announced: Sequence[Hello], feature: str) -> bool:
    on = [any(one.feature == feature and one.mode != "off" for one in hello.capabilities) for hello in announced]
    return bool(on) and all(on)


def _hands_back(pool: PrefixCachePool) -> bool:
    return pool.spec.preemption.policy == PreemptionPolicy.HAND_BACK and pool.spec.preemption.reject_below > 0


def _pools(arguments: Sequence[str]) -> bool:
    joined = [*arguments, ""]
    given = {one.partition("=")[2] for one in arguments if one.startswith(_RUNNER + "=")}
    return "pooling" in given | {after for one, after in pairwise(joined) if one == _RUNNER}
