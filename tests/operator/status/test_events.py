from typing import Any

from cachefleet_operator.status.events import Quiet, Subject, events_of

SUBJECT = Subject("demo", "serving", "uid-1", "10")
NOW = "2026-01-01T00:00:00Z"


def condition(kind: str, status: str, reason: str, message: str = "m", at: str = NOW) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def told(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["type"], event["reason"]) for event in events_of(old, new, SUBJECT, now=NOW)]


def test_tells_of_a_refused_budget_once() -> None:
    refused = [condition("BudgetAdmitted", "False", "BudgetExceedsKVCache", "2 of 1")]
    assert told([], refused) == [("Warning", "BudgetExceedsKVCache")]
    assert told(refused, refused) == []


def test_other_numbers_are_news() -> None:
    before = [condition("BudgetAdmitted", "False", "BudgetExceedsKVCache", "2 of 1")]
    after = [condition("BudgetAdmitted", "False", "BudgetExceedsKVCache", "3 of 1")]
    assert told(before, after) == [("Warning", "BudgetExceedsKVCache")]


def test_a_refusal_in_other_words_is_none_until_the_spec_changes() -> None:
    def refused(words: str, generation: int) -> list[dict[str, Any]]:
        return [condition("ConfigValid", "False", "Refused", words) | {"observedGeneration": generation}]

    assert told([], refused("request 1", 1)) == [("Warning", "Refused")]
    assert told(refused("request 1", 1), refused("request 2", 1)) == []
    assert told(refused("request 2", 1), refused("request 2", 2)) == [("Warning", "Refused")]


def test_other_counts_of_workers_are_not() -> None:
    before = [condition("WorkersAvailable", "False", "NoneReady", "0 of 1")]
    assert told(before, [condition("WorkersAvailable", "False", "NoneReady", "0 of 2")]) == []


def test_good_from_the_beginning_is_no_news() -> None:
    new = [condition("ConfigValid", "True", "Valid"), condition("BudgetAdmitted", "True", "Admitted")]
    assert told([], new) == []
    assert told([condition("ConfigValid", "False", "Invalid")], new[:1]) == [("Normal", "Valid")]


def test_losing_workers_is_news_and_not_having_had_any_is_not() -> None:
    gone = [condition("WorkersAvailable", "False", "NoneReady")]
    assert told([], gone) == []
    assert told([condition("WorkersAvailable", "True", "AllReady")], gone) == [("Warning", "NoneReady")]


def test_the_same_change_has_the_same_name_and_the_next_time_another() -> None:
    good = [condition("Ready", "True", "WorkersReady")]
    bad = [condition("Ready", "False", "NoneReady", at="2026-01-01T00:00:01Z")]
    worse = [condition("Ready", "False", "NoneReady", at="2026-01-01T00:00:02Z")]
    first, again, later = (events_of(old, good, SUBJECT, now=NOW)[0]["metadata"]["name"] for old in (bad, bad, worse))
    assert first == again != later


def test_an_event_says_what_it_is_about() -> None:
    (event,) = events_of([], [condition("ConfigValid", "False", "Invalid", "spec.x: no")], SUBJECT, now=NOW)
    assert event["involvedObject"]["uid"] == "uid-1"
    assert event["message"] == "spec.x: no"
    assert event["metadata"]["namespace"] == "serving"


def test_trouble_is_told_once_for_each_reason() -> None:
    def troubled(reason: str, message: str = "pod demo-a: m") -> list[dict[str, Any]]:
        available = condition("WorkersAvailable", "False", reason, f"0 of 2: {message}")
        return [available, condition("Degraded", "True", reason, message)]

    well = [condition("WorkersAvailable", "True", "AllReady"), condition("Degraded", "False", "NothingWrong")]
    assert told(well, troubled("CrashLooping")) == [("Warning", "CrashLooping")]
    assert told(troubled("CrashLooping"), troubled("CrashLooping", "pod demo-b: m")) == []
    assert told(troubled("CrashLooping"), troubled("OutOfMemory")) == [("Warning", "OutOfMemory")]


def test_reports_are_not_stale_before_they_were_fresh() -> None:
    stale = [condition("IndexFresh", "False", "ReportsStale")]
    assert told([condition("IndexFresh", "Unknown", "NoReadyWorkers")], stale) == []
    assert told([condition("IndexFresh", "True", "ReportsFresh")], stale) == [("Warning", "ReportsStale")]


def test_to_and_fro_is_told_once_a_minute() -> None:
    now = [0.0]
    quiet = Quiet(lambda: now[0], seconds=60, most=2)
    (event,) = events_of([], [condition("Degraded", "True", "CrashLooping", "pod a")], SUBJECT, now=NOW)
    (other,) = events_of([], [condition("Degraded", "True", "CrashLooping", "pod b")], SUBJECT, now=NOW)
    assert quiet.lets(event)
    quiet.record(event)
    assert not quiet.lets(other)
    now[0] = 60
    assert quiet.lets(other)


def test_other_words_about_the_spec_are_told_at_once() -> None:
    quiet = Quiet(lambda: 0.0)
    first, second = (
        events_of([], [condition("ConfigValid", "False", "Invalid", words)], SUBJECT, now=NOW)[0] for words in "ab"
    )
    quiet.record(first)
    assert not quiet.lets(first)
    assert quiet.lets(second)


def test_what_it_remembers_is_bounded() -> None:
    quiet = Quiet(lambda: 0.0, most=2)
    events = [events_of([], [condition("Degraded", "True", f"R{n}")], SUBJECT, now=NOW)[0] for n in range(3)]
    for event in events:
        quiet.record(event)
    assert [quiet.lets(event) for event in events] == [True, False, False]
