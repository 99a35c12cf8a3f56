"""The benchmark of causes in prompts asks both sides for the same requests, and holds what they cost to its bar."""

from bench import causes
from cachefleet_controlplane.prompt_causes.prompt_shapes import PromptShapes


def test_both_sides_are_timed_and_held_to_the_bar() -> None:
    on, added = causes.compared(40)
    assert on["ours"] > on["peer"] > 0
    assert on["ratio"] > 1
    assert added["kept"] is (added["ours"] <= causes.BAR_MICROSECONDS)
    assert added["ours"] == on["ours"] - on["peer"]
    assert all(causes.shown(row) for row in (on, added))


def test_requests_are_of_all_kinds_and_the_same_each_time() -> None:
    asked = list(causes.requests(60))
    assert [one.prompt.keys for one in asked] == [one.prompt.keys for one in causes.requests(60)]
    assert {one.served > 0 for one in asked} == {False, True}
    assert len({bytes(one.info.ask.fields["tools"]) for one in asked}) <= causes.AGENTS
    shapes = PromptShapes()
    for one in asked:
        causes.examine(shapes, one)
    assert 0 < len(shapes) < 60, "a turn takes the place of the one before it"
