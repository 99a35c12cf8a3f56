"""What is loaded and unloaded: that the steps lead where they should, whatever is served before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_worker.agent.duties.adapter_steps import LoadAdapter, UnloadAdapter, steps

NAMES = st.sampled_from(["sql", "french", "support", "legal"])
PLACES = st.dictionaries(NAMES, st.sampled_from(["/a", "/b", "acme/x@1"]))


def test_nothing_is_done_where_all_is_as_wanted() -> None:
    assert list(steps({"sql": "/a"}, {"sql": "/a"}, {})) == []


def test_a_hub_id_is_in_place_where_it_was_fetched_to() -> None:
    fetched = {"sql": "/cache/snapshots/5f3c"}
    assert list(steps({"sql": "acme/x@1"}, fetched, {"sql": ("acme/x@1", "/cache/snapshots/5f3c")})) == []
    again = [UnloadAdapter("sql"), LoadAdapter("sql", "acme/x@2")]
    assert list(steps({"sql": "acme/x@2"}, fetched, {"sql": ("acme/x@1", "/cache/snapshots/5f3c")})) == again
    assert list(steps({"sql": "acme/x@1"}, fetched, {})) == [UnloadAdapter("sql"), LoadAdapter("sql", "acme/x@1")]


def test_what_is_not_wanted_goes_before_anything_comes() -> None:
    assert list(steps({"b": "/b"}, {"a": "/a"}, {})) == [UnloadAdapter("a"), LoadAdapter("b", "/b")]


@given(PLACES, PLACES)
def test_steps_lead_to_what_is_wanted_and_touch_nothing_that_is_in_place(
    wanted: dict[str, str], served: dict[str, str]
) -> None:
    now = dict(served)
    for step in steps(wanted, served, {}):
        assert wanted.get(step.name) != served.get(step.name)
        if isinstance(step, UnloadAdapter):
            del now[step.name]
        else:
            assert step.name not in now  # the engine refuses a name that it has
            now[step.name] = step.path
    assert now == wanted
