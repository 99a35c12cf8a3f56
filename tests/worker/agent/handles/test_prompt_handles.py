from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.continuation import Fingerprints, RefusalCode, ids_array, prefix_hash
from cachefleet_worker.agent.handles.prompt_handles import ENTRY_BYTES, Entry, Handles, RefusedError

FINGERPRINTS = Fingerprints(
    model="m",
    tokenizer_fingerprint="sha256:t",
    renderer="vllm",
    renderer_version="0.32.0",
    template_fingerprint="sha256:c",
    effective_instructions_hash="",
    effective_tools_hash="",
)
OTHER = Fingerprints(
    model="m",
    tokenizer_fingerprint="sha256:t",
    renderer="vllm",
    renderer_version="0.32.0",
    template_fingerprint="sha256:c",
    effective_instructions_hash="",
    effective_tools_hash="other",
)


def make(max_entries: int = 8, max_bytes: int = 1 << 20) -> Handles:
    numbers = count()
    handles = Handles(max_entries=max_entries, max_bytes=max_bytes, token=lambda: f"{next(numbers):08d}")
    handles.begin("boot-1")
    return handles


def mint(
    handles: Handles, ids: list[int], *, salt: str = "", until: float = 100.0, tools: bool = False
) -> Entry | None:
    made = OTHER if tools else FINGERPRINTS
    return handles.mint(ids_array(ids), made, salt=salt, ends_at_boundary=True, expires_at=until)


def kept(handles: Handles, ids: list[int], **of: object) -> Entry:
    entry = mint(handles, ids, **of)  # type: ignore[arg-type] # as for mint
    assert entry is not None
    return entry


def code(handles: Handles, handle: str, now: float = 0.0) -> RefusalCode:
    with pytest.raises(RefusedError) as refused:
        handles.get(handle, now)
    return refused.value.code


def test_a_handle_stands_for_its_ids() -> None:
    handles = make()
    entry = kept(handles, [1, 2, 3])
    assert entry.handle.startswith("vllm_prefix_")
    assert handles.get(entry.handle, 99.9).ids.tolist() == [1, 2, 3]
    assert entry.prefix_hash == prefix_hash([1, 2, 3])
    assert handles.bytes == ENTRY_BYTES + 12


@pytest.mark.requirement("C3")
def test_a_growing_conversation_has_one_entry() -> None:
    handles = make()
    turns = [kept(handles, list(range(length))) for length in (3, 5, 9)]
    again = kept(handles, list(range(9)))
    assert len(handles) == 1
    assert all(code(handles, turn.handle) is RefusalCode.HANDLE_UNKNOWN for turn in turns)
    assert handles.get(again.handle, 0).ids.tolist() == list(range(9))


def test_only_prefixes_in_the_same_scope_are_replaced() -> None:
    handles = make()
    first = kept(handles, [1, 2, 3])
    for other in (
        kept(handles, [1, 2, 4]),
        kept(handles, [1, 2, 3, 4], salt="a"),
        kept(handles, [1, 2, 3], tools=True),
    ):
        assert handles.get(other.handle, 0) is other
    assert handles.get(first.handle, 0) is first
    shorter = kept(handles, [1, 2])
    assert handles.get(shorter.handle, 0) is shorter
    assert len(handles) == 5


@pytest.mark.requirement("C3")
def test_the_least_recently_used_go_first() -> None:
    handles = make(max_entries=2)
    first, second = kept(handles, [1]), kept(handles, [2])
    handles.get(first.handle, 0)
    kept(handles, [3])
    assert code(handles, second.handle) is RefusalCode.HANDLE_UNKNOWN
    handles.resize(1)
    assert code(handles, first.handle) is RefusalCode.HANDLE_UNKNOWN
    handles.resize(0)
    assert len(handles) == handles.bytes == 0
    assert mint(handles, [4]) is None


def test_the_bound_in_bytes_holds_and_what_is_over_it_alone_evicts_nothing() -> None:
    handles = make(max_bytes=2 * ENTRY_BYTES + 80)
    first, second = kept(handles, [1] * 10), kept(handles, [2] * 10)
    assert mint(handles, [1] * 300) is None
    assert handles.get(first.handle, 0) is first
    third = kept(handles, [3])
    assert code(handles, second.handle) is RefusalCode.HANDLE_UNKNOWN
    assert handles.get(third.handle, 0) is third


def test_nothing_is_kept_of_nothing() -> None:
    assert mint(make(), []) is None


@pytest.mark.requirement("A8", "A9")
def test_a_restart_and_a_cleared_cache_make_handles_stale() -> None:
    handles = make()
    entry = kept(handles, [1, 2])
    handles.clear("engine")
    assert not handles.current(entry)
    assert code(handles, entry.handle) is RefusalCode.STALE_EPOCH
    after = kept(handles, [1, 2])
    handles.begin("boot-2")
    assert code(handles, after.handle) is RefusalCode.STALE_EPOCH
    assert code(handles, "vllm_prefix_unheard_of") is RefusalCode.STALE_EPOCH


def test_time_is_up() -> None:
    handles = make()
    entry = kept(handles, [1, 2], until=10.0)
    assert code(handles, entry.handle, 10.0) is RefusalCode.HANDLE_EXPIRED
    assert len(handles) == 0


@pytest.mark.requirement("C12")
def test_a_damaged_entry_is_dropped() -> None:
    handles = make()
    entry = kept(handles, [1, 2, 3])
    entry.ids[1] = 7
    assert code(handles, entry.handle) is RefusalCode.HANDLE_CORRUPT
    assert code(handles, entry.handle) is RefusalCode.HANDLE_UNKNOWN
    assert handles.counts["corrupt"] == 1


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=5), st.booleans()), max_size=40), st.integers(0, 5))
def test_no_entry_is_a_prefix_of_another_and_the_books_are_right(
    minted: list[tuple[list[int], bool]], max_entries: int
) -> None:
    handles = make(max_entries=max_entries)
    for ids, tools in minted:
        mint(handles, ids, tools=tools)
        entries = list(handles._entries.values())
        assert len(entries) <= max_entries
        assert handles.bytes == sum(entry.size for entry in entries)
        assert (
            sum(sum(lengths.values()) for lengths in handles._lengths.values()) == len(entries) == len(handles._named)
        )
    last = [list(entry.ids) for entry in entries if entry.fingerprints is OTHER] if minted else []
    for newer in range(len(last)):
        assert not any(last[newer][: len(older)] == older for older in last[:newer])
