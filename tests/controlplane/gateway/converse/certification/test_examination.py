"""What an examination's answers mean."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from cachefleet_controlplane.gateway.converse.certification.examination import TurnSeen, chats, judged, turns

FIRST = array("I", range(20))
SECOND = array("I", range(30))


def seen(ids: array[int], *boundaries: int, **changes: Any) -> TurnSeen:
    return replace(TurnSeen(ids, array("I", ids), array("I", ids), boundaries), **changes)


GOOD = [seen(FIRST, 4, 15), seen(SECOND, 4, 15, 25, served=SECOND, last=True)]


def test_a21_chats_are_equal_for_equal_seeds_and_differ_for_others() -> None:
    one, same, other = (list(chats(seed, 20)) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    roles = {tuple(message["role"] for message in chat) for chat in one}
    assert any(chat[0] == "system" for chat in roles)
    assert len({len(chat) for chat in roles}) > 2
    assert max(len(message["content"]) for chat in one for message in chat) > 200
    assert any(not message["content"].isascii() for chat in one for message in chat)


def test_a21_turns_grow_and_end_with_the_user() -> None:
    for chat in chats(3, 5):
        told = list(turns(chat))
        assert told[-1] == chat
        assert all(turn[-1]["role"] == "user" for turn in told)


def test_a21_what_holds_is_certified_with_its_counts() -> None:
    found = judged([GOOD, GOOD])
    assert (found.certified, found.reason) == (True, "")
    assert found.counts == {"chats": 2, "turns": 4, "proven": 2, "served": 2}


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({"first": None}, "unrendered"),
        ({"second": FIRST[:-1]}, "unstable"),
        ({"keyed": None}, "unkeyed"),
        ({"keyed": FIRST[1:]}, "keyed_otherwise"),
        ({"served": FIRST, "last": True}, "served_otherwise"),
        ({"served": None, "last": True}, "unserved"),
    ],
)
def test_a21_each_fault_refuses(change: dict[str, Any], count: str) -> None:
    found = judged([GOOD, [GOOD[0], replace(GOOD[1], **change)]])
    assert not found.certified
    assert found.reason
    assert found.counts[count] == 1


def test_a14_a_template_that_goes_back_is_counted_and_refuses_nothing() -> None:
    back = [seen(FIRST, 4, 15), seen(array("I", [9, *range(1, 30)]), 4, 15)]
    found = judged([GOOD, back])
    assert (found.certified, found.counts["backtracked"], found.counts["proven"]) == (True, 1, 1)


def test_a21_where_no_boundary_ever_holds_nothing_is_certified() -> None:
    never = [seen(FIRST, 4, 15), seen(SECOND, 4)]
    assert not judged([never]).certified
    assert not judged([[GOOD[0]]]).certified
