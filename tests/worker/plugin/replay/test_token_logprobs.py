"""Log probabilities in a record: what the engine gave comes of what its answer says."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest

from cachefleet_core.engine.answer_replay import Part, TokenLogprobs, comment, part_of, read_part
from cachefleet_worker.plugin.replay.token_logprobs import engine_row, recorded_logprobs


def told(ids: list[int], values: list[float], rank: int, likeliest: int) -> Any:
    """As vLLM's ``append_logprobs_for_next_position``: later entries of an id replace earlier ones."""
    ranks = itertools.chain((rank,), range(1, likeliest + 1))
    return {
        token: SimpleNamespace(logprob=value, rank=place)
        for token, value, place in zip(ids, values, ranks, strict=False)
    }


@pytest.mark.parametrize(
    ("ids", "values", "rank", "likeliest"),
    [
        ([7], [-0.5], 1, 0),
        ([7, 7, 8], [-0.5, -0.5, -1.25], 1, 2),
        ([8, 7, 8, 9], [-1.0, -0.5, -1.0, -3.0], 2, 3),
        ([9, 7, 8], [-4.0, -0.5, -1.0], 30, 2),
        ([9, 7, 8], [-0.5, -0.5, -0.5], 1, 2),
        ([9, 7, 8], [-math.inf, -0.1, -math.inf], 900, 2),
    ],
    ids=["alone", "first", "second", "no-likeliest", "tied", "impossible"],
)
def test_an_engine_gives_again_what_it_gave(ids: list[int], values: list[float], rank: int, likeliest: int) -> None:
    entries = told(ids, values, rank, likeliest)
    (kept,) = recorded_logprobs([entries])
    read = read_part(part_of(comment(Part(ids=ids[:1], logprobs=[kept])))).logprobs[0]
    assert read == kept
    place, tokens, numbers = engine_row(read, likeliest)
    assert (tokens, numbers) == (ids, values)
    again = told(tokens, numbers, place, likeliest)
    assert list(again) == list(entries)
    assert again == entries


def test_an_answer_without_them_has_none() -> None:
    assert recorded_logprobs(None) == recorded_logprobs([]) == []
    assert comment(Part(ids=[1])) == b": cachefleet.replay [1]\n\n"
    assert TokenLogprobs(1, [2], [None]).values == [None]
