"""Every code has its sentence."""

from __future__ import annotations

from cachefleet_controlplane.routing.cache_shortfall import Cause
from cachefleet_controlplane.routing.decision import Reason
from cachefleet_controlplane.routing.reason_texts import CAUSES, REASONS, why, why_short


def test_each_reason_and_each_cause_has_one_sentence_of_its_own() -> None:
    assert set(REASONS) == set(Reason)
    assert set(CAUSES) == set(Cause)
    sentences = [*REASONS.values(), *CAUSES.values()]
    assert len(set(sentences)) == len(sentences)
    assert all(sentence[0].isupper() and sentence.endswith(".") for sentence in sentences)


def test_a_code_that_is_not_known_stands_for_itself() -> None:
    assert (why("by_moonlight"), why_short("by_moonlight")) == ("by_moonlight", "by_moonlight")
