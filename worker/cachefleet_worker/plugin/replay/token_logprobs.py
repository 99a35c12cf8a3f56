"""Log probabilities in a record: as vLLM's answers have them, and as its engine gives them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cachefleet_core.engine.answer_replay import TokenLogprobs


def recorded_logprobs(told: Sequence[Any] | None) -> list[TokenLogprobs]:
    """Of an output of vLLM's, one mapping of ids for each token, the produced one's first."""
    return [_recorded(each) for each in told or ()]


def _recorded(entries: Any) -> TokenLogprobs:
    found = list(entries.values())
    values = [None if math.isinf(each.logprob) else each.logprob for each in found]
    return TokenLogprobs(found[0].rank, list(entries), values)


def engine_row(logprobs: TokenLogprobs, likeliest: int) -> tuple[int, list[int], list[float]]:
    """Rank, ids and values as the engine gives them: the produced token, then so many ``likeliest`` ones.

    It is among these, too, where it is one of them: an answer has it once.
    """
    values = [-math.inf if value is None else value for value in logprobs.values]
    entries = list(zip(logprobs.ids, values, strict=True))
    produced, others = entries[0], entries[1:]
    if len(entries) == likeliest:
        others = [*others[: logprobs.rank - 1], produced, *others[logprobs.rank - 1 :]]
    row = [produced, *others]
    return logprobs.rank, [token for token, _ in row], [value for _, value in row]
