"""At a request's end, from its trace and the fleet: why less of it was cached than predicted, and what that tells of
the worker's claims.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.send.answers.usage import Usage
from cachefleet_controlplane.index.block_index import IndexDefectError
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.cache_shortfall import Cause, Facts, Surplus, shortfall, surplus
from cachefleet_controlplane.routing.decision import Decision, Knowledge
from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES
from cachefleet_controlplane.store.decision_records import ShortfallRecord
from cachefleet_core.tenancy import TenantId

logger = logging.getLogger(__name__)

_EXCUSED: Final = frozenset({Cause.MOVED, Cause.RENDERED_DIFFERENTLY, Cause.SALTED, Cause.RESTARTED})
"""Causes of a shortfall that say nothing of the worker's claim."""


class Shortfalls:
    """Compares what was served with what was predicted; ``salt_version`` is each tenant's at present."""

    def __init__(self, fleet: Fleet, salt_version: Callable[[TenantId], int]) -> None:
        self._fleet = fleet
        self._salt_version = salt_version

    def take_evidence(self, trace: DecisionTrace) -> None:
        """Tell the fleet what an exact prediction's worker served of what the index said it holds.

        Not where something else than its claim was wrong (see _EXCUSED), nor where the usage is no measure of it: of
        several prompts, of an engine that skipped its cache, of a gate's refusal (no tokens), or of a Prefill worker.
        """
        usage, answered = trace.usage, trace.answered
        if usage is None or usage.cached_tokens is None or not trace.block_size:
            return
        if answered is None or answered.knowledge is not Knowledge.EXACT or answered.prompt_tokens < 1:
            return
        if not trace.single or not trace.reads_cache or usage.completion_tokens == 0 or prefilled(trace):
            return
        claimed = claimed_tokens(answered, trace.block_size)
        if usage.cached_tokens < claimed:
            cause = self.cause_of(trace, claimed, answered)
            if cause in _EXCUSED:
                return
        self._fleet.served(answered.id, claimed, usage.cached_tokens)

    def find_shortfall(self, trace: DecisionTrace) -> ShortfallRecord | None:
        """Return the shortfall of the last prediction, else that of the first one; None without any.

        For an answer by several workers it is the first worker's: usage counts the prompt alone.
        """
        usage, answered = trace.usage, trace.answered
        if usage is None or usage.cached_tokens is None or answered is None or not trace.reads_cache:
            return None
        predictions = [answered] if trace.first is None else [answered, trace.first]
        for decision in predictions:
            if usage.cached_tokens < decision.forecast_tokens:
                cause = shortfall(self._facts(decision, answered, trace, usage))
                tokens = decision.forecast_tokens - usage.cached_tokens
                return None if cause is None else ShortfallRecord(cause.value, tokens, decision.worker)
        return None

    def cause_of(self, trace: DecisionTrace, claimed: int, answered: Decision, *, loaded: int = 0) -> Cause | None:
        """Why the worker that answered served less than it was said to hold; None where it did not, or nobody tells.

        Of the ``claimed`` tokens ``loaded`` were to be loaded from below the device.
        """
        usage = trace.usage
        if usage is None:
            return None
        decision = replace(answered, predicted_tokens=claimed, forecast_tokens=claimed, loaded_tokens=loaded)
        return shortfall(self._facts(decision, answered, trace, usage))

    def _facts(self, decision: Decision, answered: Decision, trace: DecisionTrace, usage: Usage) -> Facts:
        losses = self._fleet.losses
        exact = decision.knowledge is Knowledge.EXACT
        there = decision.predicted_tokens - decision.loaded_tokens
        predicted = trace.keys[: KEY_BYTES * (there // trace.block_size)] if trace.block_size else b""
        return Facts(
            predicted_tokens=decision.forecast_tokens,
            coming_tokens=decision.forecast_tokens - decision.predicted_tokens,
            cached_tokens=usage.cached_tokens,
            loaded_tokens=decision.loaded_tokens,
            worker=decision.id,
            answered_by=answered.id,
            rendered_tokens=decision.prompt_tokens if exact else None,
            prompt_tokens=usage.prompt_tokens if trace.single else None,
            salt_version=trace.salt_version,
            salt_version_now=self._salt_version(trace.tenant),
            restarted=losses.restarted(decision.id, decision.at),
            evicted=exact and _gone(losses.evicted, decision, predicted),
            left_window=exact and _gone(losses.left_window, decision, predicted),
            unreported=exact and _gone(losses.untold, decision, self._stored(decision, trace)),
            report_age=decision.report_age if exact else 0.0,
        )

    def _stored(self, decision: Decision, trace: DecisionTrace) -> bytes:
        """Keys of all blocks that an engine stores of the prompt as it computes it."""
        size = trace.block_size
        return trace.keys[: KEY_BYTES * self._fleet.losses.keyed(decision.id, decision.prompt_tokens, size)]


def find_surplus(trace: DecisionTrace) -> dict[Surplus, int]:
    """What was served beyond an exact prediction for the worker that answered, by cause; empty where nothing was."""
    usage, answered = trace.usage, trace.answered
    if usage is None or usage.cached_tokens is None or answered is None or not trace.single:
        return {}
    if answered.knowledge is not Knowledge.EXACT or usage.cached_tokens <= answered.forecast_tokens or prefilled(trace):
        return {}
    return surplus(predicted=answered.forecast_tokens, expected=answered.expected_tokens, cached=usage.cached_tokens)


def claimed_tokens(answered: Decision, block_size: int) -> int:
    """What the index said that the decision's worker holds, in tokens that it would serve, whatever its trust."""
    return min(answered.matched_blocks, max(0, answered.prompt_tokens - 1) // block_size) * block_size


def prefilled(trace: DecisionTrace) -> bool:
    """Whether a Prefill worker was asked: of what it brought over, the usage does not tell what it had to compute."""
    return "prefill" in [attempt.kind for attempt in trace.attempts]


def _gone(find: Callable[[WorkerId, bytes, float], bool], decision: Decision, keys: bytes) -> bool:
    """What ``find`` says of blocks since a decision; False where the index fails, since accounting has to go on."""
    try:
        return find(decision.id, keys, decision.at)
    except IndexDefectError:
        logger.exception("the index failed; what became of blocks is not known", extra={"worker": decision.worker})
        return False
