from __future__ import annotations

from cachefleet_core.report_frames import Capability
from cachefleet_worker.plugin.capabilities import MAX_REASON, Capabilities, complete, merge, summary


def made(*features: tuple[str, str, str]) -> list[Capability]:
    return [Capability(feature=feature, mode=mode, reason=reason) for feature, mode, reason in features]


def test_a_feature_is_told_anew_in_its_place_and_unknown_ones_are_off() -> None:
    capabilities = Capabilities()
    capabilities.add("gate", "in_loop")
    capabilities.add("budget", "blocks")
    capabilities.add("gate", "off", "x" * 5000)
    assert [each.feature for each in capabilities.document()] == ["gate", "budget"]
    assert capabilities.document()[0].reason == "x" * MAX_REASON
    assert (capabilities.mode("budget"), capabilities.mode("nothing")) == ("blocks", "off")


def test_off_in_one_process_is_off_and_else_the_first_to_tell_counts() -> None:
    api = made(("finish_reason", "enum", ""), ("tokens", "cache", ""))
    ranks = [made(("gate", "in_loop", ""), ("budget", "blocks", "")), made(("gate", "off", "why"), ("budget", "x", ""))]
    assert merge([api, *ranks]) == made(
        ("finish_reason", "enum", ""), ("tokens", "cache", ""), ("gate", "off", "why"), ("budget", "blocks", "")
    )


def test_features_that_nobody_names_are_off_with_the_reason() -> None:
    known = made(("gate", "in_loop", ""))
    assert complete(known, ["gate", "budget"], "no engine") == [*known, *made(("budget", "off", "no engine"))]


def test_the_summary_is_one_line() -> None:
    told = made(("gate", "in_loop", ""), ("keys", "off", "no key"), ("budget", "blocks", ""), ("tokens", "off", ""))
    assert summary(told) == "gate in_loop, budget blocks; off: keys (no key), tokens"
    assert summary(made(("gate", "in_loop", ""))) == "gate in_loop"
    assert summary([]) == "nothing on"
