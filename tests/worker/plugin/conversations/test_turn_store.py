"""Turns are kept within their bounds, descendants go first, and what is joined is what was kept."""

from __future__ import annotations

import re
from array import array
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cachefleet_core.continuation import Fingerprints, Handle
from cachefleet_worker.plugin.conversations.turn import TURN_BYTES, Api, Common, Turn
from cachefleet_worker.plugin.conversations.turn_store import TurnStore

FINGERPRINTS = Fingerprints(
    model="m",
    tokenizer_fingerprint="t",
    renderer="r",
    renderer_version="1",
    template_fingerprint="p",
    effective_instructions_hash="i",
    effective_tools_hash="o",
)
SECONDS = 60.0
HASH = "sha256:" + "0" * 64


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def common(api: Api = Api.CHATS, *, salt: str = "", **members: bytes) -> Common:
    return Common(api, FINGERPRINTS, salt, members)


def turn(added: bytes = b"{}", parent: Turn | None = None, of: Common | None = None) -> Turn:
    return Turn(parent.common if parent else of or common(), added, HASH, 1, parent)


def store(*, max_bytes: int = 1 << 20, max_turns: int = 100, clock: Clock | None = None) -> TurnStore:
    return TurnStore(max_bytes=max_bytes, max_turns=max_turns, seconds=SECONDS, clock=clock or Clock())


def kept(into: TurnStore, made: Turn) -> Turn:
    found = into.keep(made)
    assert found is not None
    return found


def find(among: TurnStore, wanted: Turn) -> Turn | None:
    return among.find(wanted.handle, api=wanted.common.api, salt=wanted.common.salt)


def test_a_handle_is_one_of_the_protocol_and_never_twice_the_same() -> None:
    turns = store()
    handles = [kept(turns, turn(b"%d" % number)).handle for number in range(9)]
    assert len(set(handles)) == 9
    assert [msgspec.convert(each, Handle) for each in handles] == handles
    assert len({re.split("_", each)[2] for each in handles}) == 1


def test_a_handle_of_another_salt_or_api_is_unknown() -> None:
    turns = store()
    made = kept(turns, turn(of=common(salt="s")))
    assert turns.find(made.handle, api=Api.CHATS, salt="s") is made
    for api, salt in ((Api.CHATS, ""), (Api.CHATS, "S"), (Api.MESSAGES, "s")):
        assert turns.find(made.handle, api=api, salt=salt) is None
    assert turns.find(made.handle[:-1] + "x", api=Api.CHATS, salt="s") is None


@pytest.mark.requirement("C3")
def test_equal_turns_are_one_and_a_growing_conversation_holds_its_bytes_once() -> None:
    turns = store()
    for _ in range(2):
        last = kept(turns, turn(b"1" * 1000))
        for _ in range(4):
            last = kept(turns, turn(b"2", last))
    assert (turns.stats()["turns"], turns.stats()["bytes"]) == (5, 5 * TURN_BYTES + 1004)
    assert last.whole == b"1" * 1000 + b",2" * 4


def test_turns_that_differ_in_anything_are_not_one() -> None:
    turns = store()
    first = turn(b"1", of=common(tools=b"[]"))
    other = msgspec.structs.replace(FINGERPRINTS, model="n")
    different = [
        first,
        turn(b"2", of=first.common),
        turn(b"1", of=common()),
        turn(b"1", of=common(tools=b"{}")),
        turn(b"1", of=common(system=b"[]")),
        turn(b"1", of=common(salt="s", tools=b"[]")),
        turn(b"1", of=common(Api.MESSAGES, tools=b"[]")),
        turn(b"1", of=replace(first.common, fingerprints=other)),
        replace(first, prefix_hash=HASH.replace("0", "1")),
    ]
    handles = {kept(turns, each).handle for each in different}
    assert len(handles) == len(different)
    assert kept(turns, replace(first, common=common(tools=b"[]"))).handle in handles


def test_ids_are_joined_as_ids() -> None:
    turns, of = store(), common(Api.COMPLETIONS)
    first = kept(turns, turn(array("I", [1, 2]).tobytes(), of=of))
    second = kept(turns, turn(array("I", [1 << 31]).tobytes(), first))
    assert second.ids == array("I", [1, 2, 1 << 31])


def test_a_turn_whose_parent_is_gone_holds_the_whole() -> None:
    turns = store()
    parent = kept(turns, turn(b"1,2"))
    assert turns.clear() == 1
    child = kept(turns, turn(b"3", parent))
    assert (child.parent, child.whole) == (None, b"1,2,3")
    assert turns.stats()["bytes"] == TURN_BYTES + 5


def test_nothing_is_kept_where_there_is_no_room() -> None:
    turns = store(max_bytes=TURN_BYTES + 10)
    first = kept(turns, turn(b"1"))
    assert turns.keep(turn(b"1" * 11)) is None
    assert turns.stats()["not_kept"] == 1
    assert find(turns, first) is None
    turns.resize(0)
    assert turns.keep(turn()) is None
    assert (turns.stats()["turns"], turns.stats()["bytes"]) == (0, 0)


def test_one_that_is_used_stays_with_its_ancestors() -> None:
    clock = Clock()
    turns = store(clock=clock)
    root = kept(turns, turn(b"1"))
    branches = [kept(turns, turn(each, root)) for each in (b"2", b"3")]
    clock.now = SECONDS
    assert find(turns, branches[1])
    clock.now = SECONDS + 1
    assert turns.stats()["turns"] == 2
    assert [find(turns, each) for each in (branches[0], root)] == [None, root]
    clock.now = 3 * SECONDS
    assert turns.stats()["turns"] == 0


class Turns(RuleBasedStateMachine):
    """Beside a model that holds for each turn its whole list, and when it was last used."""

    @initialize(max_turns=st.integers(1, 8), room=st.integers(1, 12))
    def begin(self, max_turns: int, room: int) -> None:
        self.clock = Clock()
        self.max_turns, self.max_bytes = max_turns, room * (TURN_BYTES + 8)
        self.turns = store(max_bytes=self.max_bytes, max_turns=max_turns, clock=self.clock)
        self.made: list[tuple[Turn, bytes, set[str]]] = []
        self.used: list[str] = []
        """Handles, the least recently used first."""

    def use(self, made: Turn) -> None:
        for each in [turn.handle for turn in made.ancestry()]:
            self.used = [handle for handle in self.used if handle != each] + [each]

    @rule(data=st.data(), added=st.binary(max_size=12).filter(lambda each: b"," not in each), size=st.integers(0, 9))
    def keep(self, data: Any, added: bytes, size: int) -> None:
        parent, before, _ = data.draw(st.sampled_from([(None, b"", set()), *self.made]))
        made = self.turns.keep(turn(added, parent, common(tools=b"t" * size)))
        if made is None:
            self.used = [each.handle for each in self.turns]
            return
        whole = b",".join(filter(None, (before, added)))
        if made.handle not in {each.handle for each, _, _ in self.made}:
            self.made.append((made, whole, {each.handle for each in made.ancestry()} - {made.handle}))
        self.use(made)
        self.used = self.used[len(self.used) - len(list(self.turns)) :]

    @rule(data=st.data())
    def find(self, data: Any) -> None:
        if self.made:
            made, whole, _ = data.draw(st.sampled_from(self.made))
            found = find(self.turns, made)
            assert (found is not None) == (made.handle in self.used)
            if found is not None:
                assert found.whole == whole
                self.use(found)

    @rule(seconds=st.floats(0, SECONDS))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.turns.stats()
        self.used = self.used[len(self.used) - len(list(self.turns)) :]

    @rule(max_turns=st.integers(0, 8))
    def resize(self, max_turns: int) -> None:
        self.max_turns = max_turns
        self.turns.resize(max_turns)
        self.used = self.used[len(self.used) - len(list(self.turns)) :]

    @invariant()
    def bounds_are_kept_and_bytes_are_those_held(self) -> None:
        stats, held = self.turns.stats(), list(self.turns)
        assert stats["turns"] == len(held) <= self.max_turns
        assert stats["bytes"] == sum(each.size for each in held) <= self.max_bytes

    @invariant()
    def the_least_recently_used_go_first_and_no_ancestor_before_its_descendants(self) -> None:
        held = [each.handle for each in self.turns]
        assert held == self.used
        for each, _, above in self.made:
            assert each.handle not in held or above <= set(held)

    def teardown(self) -> None:
        if hasattr(self, "turns"):
            self.turns.clear()
            assert self.turns.stats()["bytes"] == 0


TestTurns = Turns.TestCase
