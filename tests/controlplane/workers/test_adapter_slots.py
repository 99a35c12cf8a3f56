"""Which adapters are on a worker's device: as vLLM keeps them, those that were used last."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.workers.adapter_slots import AdapterSlots
from cachefleet_core.pool.adapter_reports import AdapterReport

NAMES = ("a", "b", "c", "d", "e")


def slots_of(count: int, *served: str) -> AdapterSlots:
    slots = AdapterSlots()
    slots.announced(served)
    slots.reported(AdapterReport(served=served, slots=count))
    return slots


def away(slots: AdapterSlots) -> set[str]:
    """Adapters that a request would have loaded first."""
    return {*slots.displaced}


@given(st.integers(1, 4), st.lists(st.sampled_from(NAMES), max_size=40))
def test_those_used_last_are_there(count: int, used: list[str]) -> None:
    """As vLLM's manager: an LRU of so many, of which loading is a use."""
    slots, device = slots_of(count, *NAMES), OrderedDict(dict.fromkeys(NAMES[-count:]))
    for name in used:
        assert (name in slots.displaced) == (name not in device)
        slots.used(name)
        device.pop(name, None)
        device[name] = None
        if len(device) > count:
            device.popitem(last=False)
    assert away(slots) == set(NAMES) - set(device)


def test_requests_that_others_sent_are_told_by_reports() -> None:
    slots = slots_of(2, *NAMES)
    assert away(slots) == {"a", "b", "c"}
    slots.reported(AdapterReport(served=NAMES, slots=2, busy=("a",)))
    assert away(slots) == {"b", "c", "d"}


def test_one_that_is_loaded_is_there_and_one_that_is_gone_leaves_its_place() -> None:
    slots = slots_of(2, "a", "b", "c")
    slots.reported(AdapterReport(served=("a", "c", "d"), slots=2))
    assert away(slots) == {"a"}
    assert "b" not in (slots.served or ())
    slots.used("b")
    assert away(slots) == {"a"}, "what is not served is not there"


def test_nothing_is_assumed_of_an_engine_that_does_not_tell_its_slots() -> None:
    slots = AdapterSlots()
    assert slots.served is None
    slots.announced(NAMES)
    assert away(slots) == set()
    assert slots.report == AdapterReport(served=NAMES)
    full = slots_of(1, "a", "b")
    assert away(full) == {"a"}
    full.restarted()
    assert (full.report, away(full)) == (None, set())
