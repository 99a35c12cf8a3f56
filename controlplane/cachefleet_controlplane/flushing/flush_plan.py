"""Which workers are asked to flush, and what each of them is asked: pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_controlplane.flushing.flush_scope import Scope
from cachefleet_controlplane.pools.cache_salts import isolation
from cachefleet_controlplane.routing.decision import full_name
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.engine.cache_flush import FLUSH_FEATURE, FLUSH_WHOLE, FlushAsk
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.pool.policy import Isolation
from cachefleet_core.report_frames import Capability

NO_ENGINE: Final = "no engine has reported yet: nothing is known to be cached there"
NO_PLUGIN: Final = (
    "its engine runs without the cachefleet plugin, and stock vLLM cannot flush block by block: install the plugin "
    "(docs/worker.md), or restart the engine"
)
UNVOUCHED: Final = "no agent has proved by a token of its pod that it is a worker: it is sent nothing"
UNLISTED: Final = "it is in no pool's list of endpoints any more"
SHARED: Final = "its pool shares blocks between tenants (tenancy.isolation: Shared), so that none are one tenant's"
OTHERS_DROPPED: Final = ("cache_salt", "stream", "stream_options", "model")
"""Members of a prompt's body that are not the prompt's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One worker with all its ranks, and what it is asked; ``problem`` says why it is not."""

    pool: str
    worker: str
    url: str
    ask: FlushAsk
    problem: str = ""


def targets(
    scope: Scope,
    models: Sequence[ServedModel],
    workers: Iterable[WorkerFacts],
    *,
    digests: Callable[[], tuple[str, ...]],
    dry_run: bool,
) -> list[Target]:
    """The workers meant, by pool and name; ``digests`` are those of the tenant's salts. ApiError for a wrong field."""
    model_of = {pool: model for model in models for pool in model.pools if scope.pool in (None, pool)}
    ranks = [one for one in workers if one.pool in model_of and _is_meant(one, scope.worker)]
    if scope.worker is not None:
        _check_one(scope, {full_name(one.pool, one.name) for one in ranks})
    salts = digests() if scope.tenant is not None else None
    ask = FlushAsk(everything=salts is None, salts=salts, rank=_rank(scope.worker), dry_run=dry_run)
    first = {(one.pool, one.name): one for one in sorted(ranks, key=lambda one: (one.pool, one.name, -one.rank))}
    return [_target(one, model_of[one.pool], scope, ask) for one in first.values()]


def _check_one(scope: Scope, found: Collection[str]) -> None:
    """ApiError unless ``scope.worker`` means one worker: pods of different namespaces may have one name."""
    if not found:
        raise ApiError(404, _no_worker(scope), param="scope.worker")
    if len(found) > 1:
        message = f"`{scope.worker}` is the name of several workers, say which: {', '.join(sorted(found))}"
        raise ApiError(422, message, param="scope.worker")


def _no_worker(scope: Scope) -> str:
    of_pool = f" of pool `{scope.pool}`" if scope.pool is not None else ""
    of_model = f" of model `{scope.model}`" if scope.model is not None else ""
    return f"there is no worker `{scope.worker}`{of_pool}{of_model}: see `cachefleet workers`"


def _is_meant(worker: WorkerFacts, name: str | None) -> bool:
    return name is None or name in (worker.id, full_name(worker.pool, worker.name), worker.name)


def _rank(worker: str | None) -> int | None:
    """The one rank that a worker's id names."""
    rank = (worker or "").rpartition("#")[2]
    return int(rank) if worker and "#" in worker and rank.isascii() and rank.isdigit() else None


def _target(worker: WorkerFacts, model: ServedModel, scope: Scope, ask: FlushAsk) -> Target:
    adapter = model.upstream if model.is_adapter else None
    prompt = None if scope.prompt is None else rendered_body(scope.prompt, model.upstream)
    asked = FlushAsk(
        everything=ask.everything and adapter is None and prompt is None,
        salts=ask.salts,
        adapter=adapter,
        prompt=prompt,
        rank=ask.rank,
        dry_run=ask.dry_run,
    )
    problem = _problem(worker, model, asked)
    return Target(pool=worker.pool, worker=worker.name, url=worker.url, ask=asked, problem=problem)


def rendered_body(prompt: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The body by which a worker renders a prompt that others are to begin with: without the start of an answer."""
    body = {name: value for name, value in prompt.items() if name not in OTHERS_DROPPED}
    return {"model": model, **({"add_generation_prompt": False} if "messages" in body else {}), **body}


def _problem(worker: WorkerFacts, model: ServedModel, ask: FlushAsk) -> str:
    """Why a worker cannot be asked; "" where it can."""
    if not worker.url:
        return UNLISTED
    if not worker.vouched:
        return UNVOUCHED
    if ask.salts is not None and isolation(model.declared) is Isolation.SHARED:
        return SHARED
    if not worker.epoch:
        return NO_ENGINE
    return _incapable({one.feature: one for one in worker.capabilities}.get(FLUSH_FEATURE), ask)


def _incapable(feature: Capability | None, ask: FlushAsk) -> str:
    if feature is None:
        return NO_PLUGIN
    if feature.mode == "off" or (feature.mode == FLUSH_WHOLE and not ask.everything):
        return f"its plugin cannot flush this: {feature.reason}"
    return ""
