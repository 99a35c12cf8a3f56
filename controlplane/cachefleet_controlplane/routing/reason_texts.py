"""Sentences for reasons and causes, in this module only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cachefleet_controlplane.routing.cache_shortfall import Cause
from cachefleet_controlplane.routing.decision import Reason
from cachefleet_controlplane.routing.lost_tokens import LostCause

REASONS: Final[Mapping[str, str]] = {
    Reason.LONGEST_PREFIX: "No other worker holds more of the prompt, and waiting for this one costs least.",
    Reason.PREFIX_IN_FLIGHT: "A request that begins alike was just sent there: its blocks are not reported yet.",
    Reason.LOAD_OVER_PREFIX: "Another worker holds more of the prompt, but waiting there costs more than computing it.",
    Reason.COLD: "No worker holds any of the prompt, so the cheapest one computes it.",
    Reason.LOAD_ONLY: "The prompt's blocks are not known, or every report is old: the least busy worker takes it.",
    Reason.SHORT_PROMPT: "It is shorter than a block, and blocks are what is cached: the least busy worker takes it.",
    Reason.LEAST_LOADED: "The policy looks at load alone: the least busy worker takes it.",
    Reason.ROUND_ROBIN: "The policy takes the workers in turn, whatever they hold or do.",
    Reason.NO_ROOM: "On every worker it needs more blocks than may be taken now.",
    Reason.OTHERS_FIRST: "There is room, but others wait for it already and come first.",
    Reason.SENT_AHEAD: "There is room, but its worker was sent as much before it as may be, in all or of its tenant.",
    Reason.QUEUE_FULL: "There is no room, and as many requests wait for it as may.",
    Reason.QUEUE_TIMEOUT: "There was no room for as long as a request of its pool may wait.",
    Reason.WAIT_TOO_LONG: "There is no room, and those before it take longer than it may wait.",
    Reason.DISPLACED: "It waited, and one that goes first, or of a tenant with fewer that wait, took its place.",
    Reason.TOO_LARGE: "It needs more blocks than any worker has.",
    Reason.NO_READY_WORKER: "No worker of the model is ready, or every ready one was tried in vain.",
    Reason.FATAL_REQUEST: "Engines ended twice while they computed this request, so it is not tried again for a while.",
    Reason.NO_PREFILL_WORKER: "A Prefill worker has to compute the prompt first, and none is ready.",
    Reason.NOT_CACHED: "The client wants it only where it is cached, and the chosen worker holds none of it.",
    Reason.BELOW_THRESHOLD: "The Decode worker holds less than the threshold, so a Prefill worker computes it first.",
    Reason.GATE_REFUSED: "A Decode worker refused it as too little cached, so a Prefill worker computes it first.",
    Reason.SPLIT_ROLES: "No threshold applies, so a Prefill worker computes the prompt and a Decode worker answers.",
}
CAUSES: Final[Mapping[str, str]] = {
    Cause.MOVED: "Another worker answered than the one that holds it.",
    Cause.RENDERED_DIFFERENTLY: "The engine made another prompt of the request than the one it was routed by.",
    Cause.SALTED: "The tenant's salt changed, so what was cached under the old one was not found.",
    Cause.RESTARTED: "The worker started anew, with an empty cache.",
    Cause.EVICTED: "The worker evicted some of it between decision and answer.",
    Cause.WINDOW: "The worker holds the prefix, but not the last blocks of a sliding window, or the state, at its end.",
    Cause.NOT_LOADED: "The worker did not load what its reports said is in its host's memory or on its disk.",
    Cause.IN_FLIGHT: "A request sent there before was to leave it, and it was not there in time, or no more.",
    Cause.STALE: "The worker's report was old when it was decided.",
    Cause.UNREPORTED: "The answer came before the worker's next report, which tells what it had evicted.",
    Cause.UNKNOWN: "Nothing that is known explains it.",
}
LOST: Final[Mapping[str, str]] = {
    LostCause.FIRST_SEEN: "No worker held it, and it was not computed before, as far as is remembered.",
    LostCause.EVICTED: "It was computed before, and evicted since.",
    LostCause.HELD_ELSEWHERE: "Another worker held it, and was busy, out of room or not to be used.",
    LostCause.STALE: "The worker that held it had not reported for too long.",
    LostCause.RESTARTED: "The worker that held it started anew, with an empty cache, or is gone.",
    LostCause.SALTED: CAUSES[Cause.SALTED],
    LostCause.WINDOW: CAUSES[Cause.WINDOW],
    LostCause.MOVED: "The worker that held it was chosen first, and another one answered.",
    LostCause.RENDERED_DIFFERENTLY: CAUSES[Cause.RENDERED_DIFFERENTLY],
    LostCause.NOT_LOADED: CAUSES[Cause.NOT_LOADED],
    LostCause.NOT_RENDERED: "The prompt's blocks are not known, so nobody can tell.",
    LostCause.NOT_READ: "The request has the engine read nothing from its cache.",
    LostCause.LAST_BLOCK: "What follows the last whole block, and the last token, are computed in any case.",
    LostCause.NOT_TOLD: "The engine did not tell what it served; these tokens may have come from its cache.",
    LostCause.UNKNOWN: CAUSES[Cause.UNKNOWN],
}


def why(reason: str) -> str:
    """A reason's sentence; the reason itself where a record has one that this version does not know."""
    return REASONS.get(reason, reason)


def why_short(cause: str) -> str:
    """A shortfall cause's sentence; the cause itself where this version does not know it."""
    return CAUSES.get(cause, cause)


def why_lost(cause: str) -> str:
    """The sentence for a cause of lost tokens."""
    return LOST.get(cause, cause)
