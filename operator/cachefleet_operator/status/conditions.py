"""Conditions of a pool (pure); the summary, Ready, comes last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cachefleet_core.budget import BudgetReason
from cachefleet_core.engine.engine_configuration import lacks_prefix_cache
from cachefleet_core.fleet_status.pool_facts import AdapterConflict, AliasConflict, HitRatio
from cachefleet_core.index_contract import Difference
from cachefleet_core.pool.adapter_options import ADAPTERS_FOLDER
from cachefleet_operator.controlplane_client.pool_facts import (
    Facts,
    blind,
    excluded,
    key_refusing,
    not_indexed,
    unlike_asked,
    unloaded,
)
from cachefleet_operator.reasons import Reason
from cachefleet_operator.status.degraded import degraded, key_refused_words, suspended_words
from cachefleet_operator.status.finding import Finding
from cachefleet_operator.status.pool_assessment import NOTHING, Observations, Verdict, Workers

APART: Final = 0.05
"""How far what was served may be from the engines' own counters without a word."""
_NO_FILES: Final = f"No adapter found for {ADAPTERS_FOLDER}/"
"""vLLM's words about the folder where an image of an adapter is mounted."""
_KEY_REASONS: Final = frozenset({Reason.FLEET_KEY_BROKEN, Reason.FLEET_KEY_CHANGED, Reason.KEYS_REWRITTEN})
"""Reasons for which a spec cannot be used that are about keys."""

_FOR_A_PERSON: Final = frozenset(
    {
        *(Reason.INVALID, Reason.INVALID_POD_TEMPLATE, Reason.NAME_TAKEN, Reason.REFUSED),
        *(Reason.IMAGE_VOLUMES_UNSUPPORTED, Reason.DEVICES_NOT_CLAIMABLE),
        *(Reason.ROLLOUT_PAUSED, Reason.STALLED),
        *BudgetReason,
    }
)
"""Reasons that only a change of the pool, or of its surroundings, does away with."""


def findings(verdict: Verdict, workers: Workers, observations: Observations = NOTHING) -> tuple[Finding, ...]:
    """All conditions of a pool, the summary last."""
    config, budget = _config(verdict), _budget(verdict)
    available, progressing = _available(workers, observations), _progressing(verdict, workers, observations)
    keys = _keys(verdict, observations.facts)
    return (
        config,
        budget,
        available,
        _contract(observations),
        _as_asked(observations.facts),
        _fresh(observations.facts),
        _blind(observations.facts),
        _hit_rate(verdict, observations.facts),
        _name(verdict, observations),
        keys,
        *((observations.inference_pool,) if observations.inference_pool else ()),
        progressing,
        _stalled(config, budget, progressing),
        degraded(workers, observations),
        _ready(
            (config, budget, *_all_refuse(keys, observations.facts), *_all_suspended(observations.facts)),
            available,
            progressing,
            workers,
        ),
    )


def _config(verdict: Verdict) -> Finding:
    if verdict.invalid is not None:
        return Finding("ConfigValid", "False", *verdict.invalid)
    return Finding("ConfigValid", "True", Reason.VALID, "the pool is valid")


def _budget(verdict: Verdict) -> Finding:
    if verdict.budget is None:
        return _unread("BudgetAdmitted")
    words = {True: "True", False: "False", None: "Unknown"}
    return Finding("BudgetAdmitted", words[verdict.budget.admitted], verdict.budget.reason, verdict.budget.message)


def _available(workers: Workers, observations: Observations) -> Finding:
    count = f"{workers.ready} of {workers.wanted} workers ready"
    status = "True" if workers.ready else "False"
    if workers.failure:
        return Finding("WorkersAvailable", status, Reason.PODS_REFUSED, f"{count}: {workers.failure}")
    if workers.wanted == 0:
        return Finding("WorkersAvailable", "False", Reason.NO_WORKERS_WANTED, "no worker is wanted")
    if workers.ready >= workers.wanted:
        return Finding("WorkersAvailable", "True", Reason.ALL_READY, count + suspended_words(observations.facts))
    if observations.trouble:
        trouble = observations.trouble
        return Finding("WorkersAvailable", status, trouble.reason, f"{count}: {trouble.message}")
    words = f"{count}; {observations.ended}" if observations.ended else count
    return Finding("WorkersAvailable", status, Reason.SOME_READY if workers.ready else Reason.NONE_READY, words)


def _all_suspended(facts: Facts) -> tuple[Finding, ...]:
    """An obstacle, where every ready worker's engine serves nothing."""
    ready = [member for member in facts.members if member.ready]
    if not ready or not all(member.suspended for member in ready):
        return ()
    words = f"no worker serves{suspended_words(facts)}: requests are refused until one does"
    return (Finding("Ready", "False", Reason.ENGINES_SUSPENDED, words),)


def _contract(observations: Observations) -> Finding:
    if member := excluded(observations.facts):
        words = "; ".join(map(_differs, member.differences))
        return Finding("ContractConsistent", "False", Reason.CONTRACT_MISMATCH, f"worker {member.name}: {words}")
    if observations.disagreement:
        return Finding("ContractConsistent", "False", Reason.POOLS_DIFFER, observations.disagreement)
    known = observations.facts.pool
    if known is None:
        return _unknown("ContractConsistent", observations.facts)
    if known.contract is None:
        return Finding("ContractConsistent", "Unknown", Reason.NO_CONTRACT, "no worker has announced its contract yet")
    return Finding("ContractConsistent", "True", Reason.CONSISTENT, "all workers mean the same by a block")


def _differs(difference: Difference) -> str:
    return f"{difference.field} is {difference.actual!r}, the pool's is {difference.expected!r}"


def _as_asked(facts: Facts) -> Finding:
    kind = "EngineAsAsked"
    if facts.pool is None:
        return _unknown(kind, facts)
    unlike = unlike_asked(facts)
    if unlike:
        told = unlike[0].configuration
        if len(told) == 1 and lacks_prefix_cache(told):
            return Finding(
                kind, "False", Reason.NO_PREFIX_CACHE, f"{_uncached(facts)}: set prefixCache.enabled to false"
            )
        words = "; ".join(f"{each.field} is {each.actual}, the pool asks for {each.expected}" for each in told)
        more = f"; and {len(unlike) - 1} more" if len(unlike) > 1 else ""
        return Finding(kind, "False", Reason.ENGINE_DIFFERS, f"the engine of worker {unlike[0].name}: {words}{more}")
    if found := unloaded(facts):
        worker, problem = found
        words = f"worker {worker}: adapter {problem.name} is not as the pool has it, and gets no requests there"
        help_words = "correct its source or the variable named, or take it out; it is tried again"
        if _NO_FILES in problem.detail:
            help_words = f"its image has no adapter there, as an OCI artifact has none for containerd; {help_words}"
        return Finding(kind, "False", Reason.ADAPTER_NOT_LOADED, f"{words}: {problem.detail}; {help_words}")
    if not any(member.ready for member in facts.pool.members):
        return Finding(kind, "Unknown", Reason.NO_READY_WORKERS, "no worker is ready")
    return Finding(kind, "True", Reason.ENGINES_AS_ASKED, "no engine says that it is otherwise than the pool asks")


def _uncached(facts: Facts) -> str:
    """Which worker has no prefix cache though its pool wants one; "" for none."""
    lacking = (member.name for member in unlike_asked(facts) if lacks_prefix_cache(member.configuration))
    name = next(lacking, "")
    return (
        name and f"the engine of worker {name} has no prefix cache, as vLLM gives none to its model (an encoder, say)"
    )


def _fresh(facts: Facts) -> Finding:
    if facts.pool is None:
        return _unknown("IndexFresh", facts)
    ready = [member for member in facts.pool.members if member.ready]
    if not ready:
        return Finding("IndexFresh", "Unknown", Reason.NO_READY_WORKERS, "no worker is ready")
    stale = sorted((member for member in ready if not member.fresh), key=lambda member: member.vouched)
    words = f"{len(ready) - len(stale)} of {len(ready)} ready workers report what they hold"
    if not stale:
        return Finding("IndexFresh", "True", Reason.FRESH, words)
    unheard = "" if stale[0].vouched else " and gets no requests, as its agent has not come yet"
    return Finding("IndexFresh", "False", Reason.STALE, f"{words}; {stale[0].name} does not{unheard}")


def _blind(facts: Facts) -> Finding:
    kind = "IndexBlind"
    if facts.pool is None:
        return _unknown(kind, facts)
    if odd := not_indexed(facts):
        words = f"worker {odd.name} is not indexed, requests reach it by text or load: {odd.not_indexed}"
        return Finding(kind, "True", Reason.NOT_UNDERSTOOD, words)
    unseen = blind(facts)
    if unseen:
        more = f", and {len(unseen) - 1} more" if len(unseen) > 1 else ""
        words = "serves from its cache, and the index holds nothing of it: requests do not find it there"
        return Finding(kind, "True", Reason.SERVES_UNINDEXED, f"worker {unseen[0].name}{more} {words}")
    return Finding(kind, "False", Reason.HITS_INDEXED, "no worker serves from a cache that the index does not know")


def _hit_rate(verdict: Verdict, facts: Facts) -> Finding:
    if verdict.objective is None:
        unset = Finding("HitRateMet", "Unknown", Reason.NO_OBJECTIVE, "hit.objective is not set")
        return _unread("HitRateMet") if verdict.budget is None else unset
    if facts.pool is None:
        return _unknown("HitRateMet", facts)
    if uncached := _uncached(facts):
        return Finding("HitRateMet", "Unknown", Reason.NO_PREFIX_CACHE, uncached)
    return _measured_rate(verdict.objective, facts.pool.hit_ratio)


def _measured_rate(objective: float, measured: HitRatio) -> Finding:
    window = f"the last {measured.window_seconds:.0f} s"
    if measured.value is None:
        return Finding("HitRateMet", "Unknown", Reason.NO_SAMPLES, f"no prompt was looked up in {window}")
    words = f"{measured.value:.2f} of prompt tokens came from cache in {window}, the objective is {objective:g}"
    if measured.by == "answers" and measured.counted is not None and abs(measured.counted - measured.value) >= APART:
        words += f"; the engines' own counters, which know their own blocks alone, say {measured.counted:.2f}"
    if not measured.sampled:
        tokens = measured.tokens or measured.queried_tokens
        few = f"{tokens} prompt tokens are fewer than hit.objective.minTokens, too few to judge by"
        return Finding("HitRateMet", "Unknown", Reason.TOO_FEW_SAMPLES, f"{words}; {few}")
    if measured.value >= objective:
        return Finding("HitRateMet", "True", Reason.OBJECTIVE_MET, words)
    return Finding("HitRateMet", "False", Reason.BELOW_OBJECTIVE, words)


def _name(verdict: Verdict, observations: Observations) -> Finding:
    kind, conflict, known = "ModelNameConflict", observations.name_conflict, observations.facts.pool
    if verdict.budget is None:
        return _unread(kind)
    if conflict is None and known and known.adapter_conflicts:
        return Finding(kind, "True", Reason.ADAPTER_NAME_TAKEN, _adapter_words(known.adapter_conflicts))
    if conflict is None and known and known.alias_conflicts:
        return Finding(kind, "True", Reason.ALIAS_TAKEN, _alias_words(known.alias_conflicts))
    if conflict is None:
        return Finding(kind, "False", Reason.NAME_OWNED, "the model is asked for by its name")
    words = "the model is asked for as namespace/model alone"
    if conflict.nameless:
        words = "namespace/model is not its name either, so nobody can ask for it: name it apart"
    if conflict.owner:
        return Finding(kind, "True", Reason.NAME_OF_ANOTHER, f"its name belongs to pool {conflict.owner}; {words}")
    return Finding(kind, "True", Reason.NAME_NOT_ALLOWED, f"this namespace may not have its name; {words}")


def _adapter_words(conflicts: tuple[AdapterConflict, ...]) -> str:
    first, more = conflicts[0], f"; and {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
    owner = f"belongs to pool {first.owner}" if first.owner else "may not be had by this namespace"
    words = f"it is asked for as namespace/{first.adapter} alone"
    if first.nameless:
        words = f"namespace/{first.adapter} is not its name either, so nobody can ask for it: name it apart"
    return f"the name of adapter {first.adapter} {owner}; {words}{more}"


def _alias_words(conflicts: tuple[AliasConflict, ...]) -> str:
    first, more = conflicts[0], f"; and {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
    owner = f"belongs to pool {first.owner}" if first.owner else "may not be had by this namespace"
    words = f"it means this model as namespace/{first.alias} alone"
    if first.nameless:
        words = f"namespace/{first.alias} does not mean this model either: take another alias"
    return f"the alias {first.alias} {owner}; {words}{more}"


def _keys(verdict: Verdict, facts: Facts) -> Finding:
    kind = "KeysBroken"
    if verdict.invalid is not None and verdict.invalid[0] in _KEY_REASONS:
        return Finding(kind, "True", *verdict.invalid)
    if found := key_refusing(facts):
        return Finding(kind, "True", Reason.KEYS_REFUSED, key_refused_words(found[0]))
    return Finding(kind, "False", Reason.KEYS_HELD, "no worker is known to refuse the gateway's key")


def _all_refuse(keys: Finding, facts: Facts) -> tuple[Finding, ...]:
    """``keys``, as an obstacle, where no ready worker takes the gateway's key."""
    ready = [member for member in facts.members if member.ready]
    all_do = keys.reason == Reason.KEYS_REFUSED and ready and all(member.key_refused for member in ready)
    return (Finding(keys.type, "False", keys.reason, keys.message),) if all_do else ()


def _unknown(kind: str, facts: Facts) -> Finding:
    return Finding(kind, "Unknown", facts.reason, facts.message)


def _unread(kind: str) -> Finding:
    return Finding(kind, "Unknown", Reason.CONFIG_INVALID, "the pool cannot be read: see ConfigValid")


def _progressing(verdict: Verdict, workers: Workers, observations: Observations) -> Finding:
    kind = "Progressing"
    if not verdict.admitted:
        return Finding(kind, "False", Reason.HELD, "running workers stay as they are, no worker is started")
    if observations.paused:
        cause = f": {observations.trouble.message}" if observations.trouble else ""
        words = "new workers fail, the rollout stands still until they are well or the pool changes"
        return Finding(kind, "False", Reason.ROLLOUT_PAUSED, words + cause)
    if workers.settled:
        return Finding(kind, "False", Reason.SETTLED, "all workers run the pool as it is")
    if observations.trouble:
        return Finding(kind, "False", observations.trouble.reason, observations.trouble.message)
    if workers.stalled:
        return Finding(kind, "False", Reason.STALLED, workers.stalled)
    return Finding(kind, "True", Reason.ROLLING_OUT, "workers are being started or replaced")


def _stalled(config: Finding, budget: Finding, progressing: Finding) -> Finding:
    """Whether waiting will not do: Flux and other appliers give up waiting for a pool that says so (kstatus)."""
    for finding in (config, budget, progressing):
        if finding.status == "False" and finding.reason in _FOR_A_PERSON:
            return Finding("Stalled", "True", finding.reason, finding.message)
    return Finding("Stalled", "False", Reason.CONVERGES, "nothing waits for a change of the pool")


def _ready(obstacles: Iterable[Finding], available: Finding, progressing: Finding, workers: Workers) -> Finding:
    for finding in obstacles:
        if finding.status == "False":
            return Finding("Ready", "False", finding.reason, finding.message)
    if workers.settled and not workers.failure:
        reason = Reason.WORKERS_READY if workers.wanted else Reason.NO_WORKERS_WANTED
        return Finding("Ready", "True", reason, available.message)
    cause = available if workers.failure or progressing.reason == Reason.SETTLED else progressing
    held = cause is progressing and progressing.status == "False"
    return Finding("Ready", "False", cause.reason, cause.message if held else available.message)
