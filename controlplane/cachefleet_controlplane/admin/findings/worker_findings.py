"""What is wrong with workers (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cachefleet_controlplane.admin.findings.finding import Fault, Finding, Severity, faults, operations, troubleshooting
from cachefleet_core.engine.engine_configuration import lacks_prefix_cache
from cachefleet_core.engine.suspensions import Suspension, suspension_words
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.index_contract import Difference
from cachefleet_core.report_frames import Phase


def worker_findings(workers: tuple[WorkerFacts, ...]) -> Iterator[Finding]:
    """The findings of each worker that the source of pools lists."""
    for worker in workers:
        if worker.listed:
            yield from faults(_GROUPS, worker, f"worker {worker.id}")
            yield from _warm_findings(worker)
            yield from _adapter_findings(worker)


def _adapter_findings(worker: WorkerFacts) -> Iterator[Finding]:
    for problem in worker.adapters.problems if worker.adapters else ():
        yield Finding(
            severity=Severity.WARNING,
            subject=f"worker {worker.id}",
            reason="AdapterNotLoaded",
            message=f"adapter {problem.name} is not as the pool has it, and gets no requests there: {problem.detail}",
            action="correct its source or the variable named, or take it out of spec.model.adapters; it is tried again",
            docs=operations("engineasasked"),
        )


def _warm_findings(worker: WorkerFacts) -> Iterator[Finding]:
    for problem in worker.warmth.problems:
        reason, words, action = _WARM.get(problem.kind, _WARM_FAILING)
        yield Finding(
            severity=Severity.WARNING,
            subject=f"worker {worker.id}",
            reason=reason,
            message=f"warm prefix {problem.name} "
            + words.format(tokens=problem.tokens, limit=problem.limit, times=problem.attempts, detail=problem.detail),
            action=action,
            docs=operations("degraded-and-ready"),
        )


_WARM_FAILING: Final = (
    "WarmPrefixFailing",
    "failed {times} times in a row, the last time with: {detail}",
    "it is tried again; the engine's log says why",
)
_WARM: Final = {
    "too_long": (
        "WarmPrefixTooLong",
        "takes {tokens} tokens, the limit is {limit} by {detail}",
        "shorten it, or raise that",
    ),
    "refused": ("WarmPrefixRefused", "is refused: {detail}", "correct it, or take it out of the pool"),
}


def _differ(differences: tuple[Difference, ...]) -> str:
    return "; ".join(f"{one.field} is {one.actual!r}, the pool's is {one.expected!r}" for one in differences)


def _failed(worker: WorkerFacts) -> bool:
    return worker.phase == Phase.FAILED


def _failure(worker: WorkerFacts) -> str:
    return "its agent says that it failed" + (f": {worker.phase_reason}" if worker.phase_reason else "")


def _age(worker: WorkerFacts) -> str:
    return "never" if worker.report_age_seconds is None else f"{worker.report_age_seconds:.0f} s ago"


_STALE: Final = troubleshooting("reports-are-stale")
_GROUPS: Final[tuple[tuple[Fault[WorkerFacts], ...], ...]] = (
    (
        Fault(
            lambda worker: worker.suspended == Suspension.STUCK,
            Severity.WARNING,
            "EngineStuck",
            lambda _: "its engine answers health checks, but requests wait there and nothing moves: it gets no others",
            "read the engine's log; restart the engine where it does not go on by itself",
            troubleshooting("engines-that-serve-nothing"),
        ),
        Fault(
            lambda worker: worker.suspended,
            Severity.INFO,
            "EngineSuspended",
            lambda worker: (
                f"its engine is {suspension_words(worker.suspended)}, so it gets no requests until it serves"
            ),
            "nothing is broken: somebody called /sleep or /pause, and /wake_up or /resume ends it",
            troubleshooting("engines-that-serve-nothing"),
        ),
    ),
    (
        Fault(
            _failed,
            Severity.WARNING,
            "WorkerFailed",
            _failure,
            "read the engine's log; it gets no requests until it is started anew",
            troubleshooting("workers-fail"),
        ),
        Fault(
            lambda worker: worker.key_refused,
            Severity.WARNING,
            "KeysRefused",
            lambda _: "it does not take the gateway's key, so it gets no requests while others do",
            "where its pod is not being replaced: restart the control plane, then the pod",
            troubleshooting("keys-are-refused"),
        ),
        Fault(
            lambda worker: worker.backing_off,
            Severity.WARNING,
            "BackingOff",
            lambda worker: f"the gateway could not reach it at {worker.url}; others are preferred for some seconds",
            "look whether the engine runs, and at network policies; `cachefleet decisions` has the attempts",
            troubleshooting("workers-fail"),
        ),
    ),
    (
        Fault(
            lambda worker: worker.ready and not worker.vouched,
            Severity.WARNING,
            "AgentAbsent",
            lambda _: "its agent has not come yet, so it gets no requests",
            "read the agent's log: it says why the control plane is not reached",
            _STALE,
        ),
        Fault(
            lambda worker: worker.ready and not worker.connected,
            Severity.WARNING,
            "AgentDisconnected",
            lambda worker: f"its agent is not connected (last report: {_age(worker)}); it gets requests by load alone",
            "read the agent's log: it says why the control plane is not reached",
            _STALE,
        ),
        Fault(
            lambda worker: worker.ready and worker.stale,
            Severity.WARNING,
            "ReportsStale",
            lambda worker: f"its blocks are not trusted (stream {worker.stream}, last report: {_age(worker)})",
            "read the agent's log; while its reports are old it gets requests by load alone",
            _STALE,
        ),
    ),
    (
        Fault(
            lambda worker: worker.excluded,
            Severity.WARNING,
            "ContractMismatch",
            lambda worker: f"it is used last, since its blocks mean something else: {_differ(worker.differences)}",
            "replace it; pin model.revision where weights or revision differ",
            troubleshooting("contracts-differ"),
        ),
    ),
    (
        Fault(
            lambda worker: len(worker.configuration) == 1 and lacks_prefix_cache(worker.configuration),
            Severity.WARNING,
            "NoPrefixCache",
            lambda _: "it has no prefix cache, as vLLM gives none to its model (an encoder, say)",
            "set prefixCache.enabled to false in its pool",
            operations("engineasasked"),
        ),
        Fault(
            lambda worker: worker.configuration,
            Severity.WARNING,
            "EngineDiffers",
            lambda worker: f"its engine is not as the pool asks: {_differ(worker.configuration)}",
            "find what changes vLLM's arguments on their way, or ask in the pool for what the engine has",
            operations("engineasasked"),
        ),
    ),
    (
        Fault(
            lambda worker: worker.not_indexed,
            Severity.WARNING,
            "NotUnderstood",
            lambda worker: f"it is not indexed, requests reach it by text or load: {worker.not_indexed}",
            "nothing is broken: report the model, so that its groups are learnt",
            troubleshooting("the-index-is-blind-to-a-worker"),
        ),
        Fault(
            lambda worker: worker.blind,
            Severity.WARNING,
            "ServesUnindexed",
            lambda _: "its engine serves from a cache of which the index holds nothing: requests do not find it there",
            "see whether the engine publishes block events, and whether they reach its agent",
            troubleshooting("the-index-is-blind-to-a-worker"),
        ),
        Fault(
            lambda worker: not worker.indexed,
            Severity.WARNING,
            "IndexFull",
            lambda _: "its blocks did not fit into the index: it gets requests by load until it starts anew",
            "give the control plane more memory, or correct model.kvBytesPerToken",
            troubleshooting("the-index-is-full"),
        ),
        Fault(
            lambda worker: worker.doubted,
            Severity.WARNING,
            "ClaimsNotServed",
            lambda worker: f"it serves little of what it claims to hold: {worker.trust:.0%} of that is counted on",
            "replace it; if it happens again, report it with the agent's log",
            troubleshooting("a-worker-claims-what-it-does-not-serve"),
        ),
    ),
)
