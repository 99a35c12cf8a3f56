"""Which streams another worker can make again, and why nobody can go on with others.

What a stream's tokens do not tell (parsers of reasoning and tools, events of Responses and Messages) is made again from
a record of the engine's outputs (core/cachefleet_core/engine/answer_replay.py). Whether there is one the worker says,
which knows all that shapes sampling; here is what the gateway knows before.
"""

from __future__ import annotations

from enum import StrEnum

from cachefleet_controlplane.gateway.apis.request_info import GENERATING, RequestInfo
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.request.hit_thresholds import HitThresholds
from cachefleet_core.engine.answer_replay import MAX_NAME, ReplayAsk


class Unresumed(StrEnum):
    """Why nobody could go on with an answer; besides, what a worker says (``answer_replay.Unrecorded``)."""

    NOT_RECORDED = "not_recorded"
    """Its worker has no plugin that records it, or that is off."""
    NOT_REPLAYED = "not_replayed"
    """No other worker has a plugin that makes it again."""
    STOPS = "stops"
    """Its worker kept text back that may be a stop string's, and has no plugin that records it."""
    IDS = "ids"
    """The prompt's ids have not come, or not the text of all ids."""
    THRESHOLD = "threshold"
    """Its caller's own hit threshold is the worker's to act on."""
    SPLIT = "split_roles"
    """Its prompt was computed elsewhere: a Prefill worker's blocks serve one attempt."""
    TOO_LONG = "too_long"
    """Its body, or its record, is longer than what is kept."""
    NO_ROOM = "no_room"
    """Too much is kept of other streams."""
    DIVERGED = "diverged"
    """The stream that was made again is another one than the client has the beginning of."""


def replay_ask(info: RequestInfo, gate: HitThresholds, trace: DecisionTrace) -> ReplayAsk | Unresumed | None:
    """What workers are asked for with a stream that cannot be resumed from its tokens; why nothing; None: no stream."""
    if not info.stream or info.endpoint not in GENERATING:
        return None
    if gate.own:
        return Unresumed.THRESHOLD
    if gate.split:
        return Unresumed.SPLIT
    return ReplayAsk(trace.id[:MAX_NAME], int(trace.at))
