"""What is recorded of an answer, and the names and times in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cachefleet_core.engine.answer_replay import (
    Part,
    ReplayAsk,
    ReplayError,
    Unrecorded,
    comment,
    part_of,
    read_ask,
    read_part,
    read_record,
    record_of,
)
from cachefleet_worker.plugin.replay.recorded_answer import RecordedAnswer, current, digest
from cachefleet_worker.plugin.replay.replay_hooks import RecordedTime, SeededNames

ASK = ReplayAsk("d1", 1_764_000_000)


def output(ids: list[int], *, finish: str | None = None, stop: Any = None, cached: int | None = 32) -> Any:
    choice = SimpleNamespace(token_ids=ids, finish_reason=finish, stop_reason=stop)
    return SimpleNamespace(outputs=[choice], num_cached_tokens=cached, num_cache_creation_tokens=None)


def parts(told: bytes) -> list[Part]:
    return [read_part(part_of(event + b"\n\n")) for event in told.split(b"\n\n") if event]


def test_the_first_part_tells_the_prompt_and_the_last_the_end() -> None:
    answer = RecordedAnswer(ASK)
    assert not answer.begin([1, 2], None)
    for each in (output([5]), output([6, 7]), output([8], finish="stop", stop=8)):
        answer.note(each)
    assert parts(answer.take()) == [
        Part(ids=[5], prompt=digest([1, 2]), cached=32),
        Part(ids=[6, 7]),
        Part(ids=[8], finish="stop", stop=8),
    ]
    assert answer.take() == b""


def test_what_cannot_be_recorded_says_so_once() -> None:
    answer = RecordedAnswer(ASK)
    assert not answer.begin([1], Unrecorded.SEED)
    answer.note(output([5]))
    assert parts(answer.take()) == [Part(off=Unrecorded.SEED)]


def test_a_second_round_ends_the_record() -> None:
    answer = RecordedAnswer(ASK)
    answer.begin([1], None)
    answer.note(output([5]))
    assert not answer.begin([1, 5, 9], None)
    answer.note(output([6]))
    assert parts(answer.take())[1:] == [Part(off=Unrecorded.ROUNDS)]


@pytest.mark.parametrize(("prompt", "replayed"), [([1, 2], True), ([1, 3], False)])
def test_it_is_replayed_behind_the_same_prompt_alone(prompt: list[int], *, replayed: bool) -> None:
    answer = RecordedAnswer(ASK, [Part(ids=[5], prompt=digest([1, 2]), cached=16)])
    assert answer.begin(prompt, None) == replayed
    assert (answer.off, answer.cached) == ((None, 16) if replayed else (Unrecorded.PROMPT, None))


def test_names_and_times_are_those_of_the_header() -> None:
    names, time = SeededNames(), RecordedTime()

    def made() -> list[str]:
        token = current.set(RecordedAnswer(ASK))
        try:
            assert time.time() == ASK.seconds
            return [names.uuid4().hex for _ in range(3)]
        finally:
            current.reset(token)

    assert made() == made()
    assert len(set(made())) == 3
    assert names.uuid4() != names.uuid4()
    assert time.time() > ASK.seconds
    assert time.monotonic() > 0
    answer = RecordedAnswer(ASK)
    with answer.own_names():
        assert answer.uuid4() != RecordedAnswer(ASK).uuid4()
    assert answer.uuid4() == RecordedAnswer(ASK).uuid4()


def test_a_record_is_read_as_it_was_written() -> None:
    given = [Part(ids=[1], prompt="aa", cached=0), Part(ids=[2, 3]), Part(ids=[4], finish="length")]
    lines = [part_of(comment(each)) for each in given]
    assert lines[1] == b"[2,3]"
    assert read_record(record_of(lines)) == given
    assert part_of(b": ping\n\n") == b""
    for wrong in (b"[1.5]", b"{", b'{"ids":"a"}', b'{"off":"?"}', b"[-", b"7"):
        with pytest.raises(ReplayError):
            read_record(wrong)


@pytest.mark.parametrize("ask", [ASK, ReplayAsk("a-b.c", 0, 7)])
def test_a_header_is_read_as_it_was_written(ask: ReplayAsk) -> None:
    assert read_ask(ask.header.encode()) == ask


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"d1",
        b";1",
        b"d1;x",
        b"d1;1;2;3",
        b"d1;-1",
        b"d1;99999999999",
        b"d1;1;9999999999",
        b"\xe9;1",
        b"d 1\t;1",
        b"x" * 129 + b";1",
    ],
)
def test_another_header_is_refused(value: bytes) -> None:
    with pytest.raises(ReplayError):
        read_ask(value)
