"""Prompts are kept for a while, within their bytes, and used once, by calls that would render the same."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_worker.plugin.prompts.prompt_store import SECONDS, PromptStore
from cachefleet_worker.plugin.prompts.render_call import Call, RenderedPrompt

ROOM = 100_000


def prompt(name: str = "a", *, size: int = 100, tokens: int = 10) -> RenderedPrompt:
    return RenderedPrompt(Call(name.encode(), size), array("I", range(tokens)), {"type": "token"})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def counted(store: PromptStore) -> dict[str, int]:
    return {name: count for name, count in store.stats().items() if count}


def test_a_prompt_is_used_once_by_the_same_call() -> None:
    store = PromptStore(max_bytes=ROOM)
    kept = prompt()
    handle = store.keep(kept)
    assert store.use(handle, prompt("b").call) is None
    assert store.use(handle, None) is None
    assert store.use(handle, prompt().call) is kept
    assert store.use(handle, prompt().call) is None
    assert counted(store) == {"used": 1, "other_prompt": 2, "unknown": 1}


def test_it_is_kept_for_thirty_seconds() -> None:
    clock = Clock()
    store = PromptStore(max_bytes=ROOM, clock=clock)
    first, clock.now = store.keep(prompt()), SECONDS
    second = store.keep(prompt())
    assert store.stats()["prompts"] == 2
    clock.now += 0.1
    assert store.use(first, prompt().call) is None
    assert store.use(second, prompt().call)


def test_what_is_too_old_ends_when_the_agent_looks() -> None:
    clock = Clock()
    store = PromptStore(max_bytes=ROOM, clock=clock)
    store.keep(prompt())
    clock.now = SECONDS + 0.1
    assert counted(store) == {}


def test_another_servers_handle_is_told_from_one_that_is_unknown() -> None:
    store, other = PromptStore(max_bytes=ROOM), PromptStore(max_bytes=ROOM)
    own = store.keep(prompt())
    for handle in (other.keep(prompt()), own[:-1], own + "0", "", own.upper()):
        assert store.use(handle, prompt().call) is None
    assert counted(store) | {"prompts": 1, "bytes": 0} == {"other_server": 1, "unknown": 4, "prompts": 1, "bytes": 0}


def test_what_is_longer_than_all_the_room_is_not_kept_and_drops_nothing() -> None:
    store = PromptStore(max_bytes=ROOM)
    kept = store.keep(prompt())
    assert store.keep(prompt(size=ROOM)) == ""
    assert store.use(kept, prompt().call)


@given(st.lists(st.tuples(st.integers(1, ROOM // 3), st.integers(0, 9000), st.booleans()), max_size=40))
def test_bytes_are_bounded_and_the_oldest_give_way(given: list[tuple[int, int, bool]]) -> None:
    store = PromptStore(max_bytes=ROOM)
    alive: list[tuple[str, RenderedPrompt]] = []
    for size, tokens, use in given:
        made = prompt(size=size, tokens=tokens)
        handle = store.keep(made)
        if handle:
            alive.append((handle, made))
        while sum(each.size for _, each in alive) > ROOM:
            alive.pop(0)
        if use and alive:
            last, expected = alive.pop()
            assert store.use(last, expected.call) is expected
        assert store.stats()["bytes"] == sum(each.size for _, each in alive) <= ROOM
        assert store.stats()["prompts"] == len(alive)
