"""Streams that another worker makes again: the client gets, byte for byte, what one worker alone would have sent."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
from cachefleet_native import KeptBytes, event_digest

from cachefleet_controlplane.gateway.request.replay_eligibility import Unresumed
from cachefleet_controlplane.gateway.retry import gateway_context, stalled_attempts, stream_replay
from cachefleet_controlplane.gateway.retry.stream_replay import StreamReplay
from cachefleet_controlplane.gateway.send.worker_call import Trail
from cachefleet_core.engine.answer_replay import COMMENT, HEADER, Part, ReplayAsk, Unrecorded, comment, part_of
from cachefleet_core.index_contract import RenderProfile
from cachefleet_core.report_frames import Capability, Phase
from tests.controlplane.gateway.harness import MODEL, Front, chat, engine, front
from tests.controlplane.waiting import until
from tests.fakes.engine import FakeEngine
from tests.fakes.routes import Routes

FUNCTION: Final = {"name": "tide", "description": "the tide", "parameters": {"type": "object"}}
TOOLS: Final = [{"type": "function", "function": FUNCTION}]
STREAM: Final = {"stream": True, "max_tokens": 12, "ignore_eos": True}
MESSAGE: Final = {"model": MODEL, "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 12}
FORMS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "tools": ("/v1/chat/completions", chat("hello there", tools=TOOLS) | STREAM),
    "usage": ("/v1/chat/completions", chat("hi", tools=TOOLS, stream_options={"include_usage": True}) | STREAM),
    "parsed": ("/v1/chat/completions", chat("hello there") | STREAM),
    "messages": ("/v1/messages", MESSAGE | {"stream": True}),
    "responses": (
        "/v1/responses",
        {"model": MODEL, "input": "hello there", "store": False, "stream": True, "max_output_tokens": 12},
    ),
}
REPLAY: Final = Capability(feature="answer_replay", mode="on")
PARSED: Final = {"capabilities": (REPLAY,), "profile": RenderProfile(reasoning_parser="granite")}
_VARYING: Final = re.compile(rb'"(id|item_id|request_id)":"[^"]*"|"(created|created_at)":\d+|[0-9a-f]{16}|d\d+')
"""What the request's own name and time make."""


def slow_engine() -> FakeEngine:
    return engine(plugin=True, natural_tokens=60, inter_token_seconds=0.02)


def long_engine() -> FakeEngine:
    return engine(plugin=True, natural_tokens=40)


@pytest.fixture
async def gate() -> AsyncIterator[Front]:
    async with long_engine() as one, long_engine() as two, front([one, two]) as gate:
        for number in range(2):
            gate.report(number, said=PARSED)
        yield gate


def fakes(gate: Front) -> list[FakeEngine]:
    return [each for each in gate.engines if isinstance(each, FakeEngine)]


def unnamed(stream: bytes) -> bytes:
    return _VARYING.sub(b"", stream)


def outcomes(gate: Front) -> list[tuple[str, str]]:
    return [(attempt.outcome, attempt.unresumed) for attempt in gate.records[-1].attempts]


Cut = Callable[..., None]


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Cut:
    """Has whoever gets the next stream break it off; it is told first."""

    def cut_next(after: int, told: Callable[[Routes], None] = lambda _: None) -> None:
        left = [after]

        def take(routes: Routes) -> int | None:
            if not left:
                return None
            told(routes)
            return left.pop()

        monkeypatch.setattr(Routes, "cut_after", property(take, lambda _, __: None), raising=False)

    return cut_next


@pytest.mark.parametrize("form", FORMS)
class TestAnyForm:
    @pytest.mark.parametrize("after", [1, 3])
    async def test_a_stream_whose_worker_dies_goes_on_byte_for_byte(
        self, gate: Front, cut: Cut, form: str, after: int
    ) -> None:
        path, body = FORMS[form]
        await gate.settled(path, body)
        _, _, whole = await gate.settled(path, body)  # with as much cached as next time
        assert COMMENT not in whole
        cut(after)
        status, _, stream = await gate.settled(path, body)
        assert (status, outcomes(gate)) == (200, [("cut_off", ""), ("finished", "")])
        assert unnamed(stream) == unnamed(whole)
        for name in (rb'"(?:item_|request_)?id":"[^"]*"', rb'"created(?:_at)?":\d+'):
            assert len(set(re.findall(name, stream))) == len(set(re.findall(name, whole)))

    async def test_where_all_die_it_ends_with_an_error(self, gate: Front, form: str) -> None:
        path, body = FORMS[form]
        for one in fakes(gate):
            one.cut_next_stream(3)
        _, _, stream = await gate.settled(path, body)
        assert b"error" in stream
        assert COMMENT not in stream

    async def test_what_its_worker_does_not_record_says_so(self, gate: Front, form: str) -> None:
        path, body = FORMS[form]
        for number, one in enumerate(fakes(gate)):
            gate.report(number, said=PARSED | {"capabilities": ()})
            one.cut_next_stream(3)
        _, _, stream = await gate.settled(path, body)
        assert b"error" in stream
        assert outcomes(gate) == [("lost", Unresumed.NOT_RECORDED)]
        assert HEADER not in {name.lower() for one in fakes(gate) for seen in one.requests for name in seen.headers}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"seed": 7}, Unrecorded.SEED),
        ({"frequency_penalty": 0.5}, Unrecorded.PENALTIES),
        ({"n": 2}, Unrecorded.CHOICES),
        ({"tool_choice": "required"}, Unrecorded.GRAMMAR),
        ({"cache_hit_threshold": 0.1, "stream_options": {}}, Unresumed.THRESHOLD),
    ],
)
async def test_what_a_record_cannot_tell_is_not_gone_on_with_and_says_why(
    gate: Front, fields: dict[str, Any], why: str
) -> None:
    for one in fakes(gate):
        one.cut_next_stream(3)
    path, body = FORMS["tools"]
    await gate.settled(path, body | fields)
    if why is not Unresumed.THRESHOLD:  # else its gate may have refused it
        assert outcomes(gate) == [("lost", why)]
    assert all(attempt.unresumed in {"", why} for attempt in gate.records[-1].attempts)


@pytest.mark.parametrize("others", [True, False], ids=["moved", "stays"])
async def test_a_stream_whose_worker_drains_is_moved_where_another_one_can_make_it_again(
    monkeypatch: pytest.MonkeyPatch, *, others: bool
) -> None:
    monkeypatch.setattr(stalled_attempts, "LOOK_SECONDS", 0.01)
    path, body = "/v1/messages", MESSAGE | {"stream": True, "max_tokens": 60}
    async with slow_engine() as one, slow_engine() as two, front([one, two]) as gate:
        gate.report(0, said=PARSED)
        gate.report(1, said=PARSED)
        await gate.settled(path, body)
        _, _, whole = await gate.settled(path, body)
        asking = asyncio.create_task(gate.settled(path, body))
        await until(lambda: any(one.worker.scheduler.running for one in fakes(gate)))
        leaving = next(number for number, one in enumerate(fakes(gate)) if one.worker.scheduler.running)
        running = fakes(gate)[leaving].worker.scheduler.running[0]
        await until(lambda: len(running.output) > 5)
        gate.report(1 - leaving, said=PARSED if others else PARSED | {"capabilities": ()})
        gate.report(leaving, said=PARSED, phase=Phase.DRAINING, drain_seconds=0.6)
        _, _, stream = await asking
        assert [outcome for outcome, _ in outcomes(gate)] == ["moved", "finished"][not others :]
        assert unnamed(stream) == unnamed(whole)


async def test_another_worker_that_cannot_make_it_again_is_passed_by(gate: Front, cut: Cut) -> None:
    def others_lack_it(routes: Routes) -> None:
        other = next(number for number, one in enumerate(fakes(gate)) if one._routes is not routes)
        gate.report(other, said=PARSED | {"capabilities": ()})

    path, body = FORMS["messages"]
    cut(2, others_lack_it)
    _, _, stream = await gate.settled(path, body)
    assert b"error" in stream
    assert outcomes(gate) == [("cut_off", ""), ("unfit", Unresumed.NOT_REPLAYED)]


@pytest.mark.parametrize("limit", [10, 400], ids=["body", "record"])
async def test_where_too_much_is_kept_of_streams_nobody_goes_on_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch, cut: Cut, limit: int
) -> None:
    monkeypatch.setattr(gateway_context, "MAX_KEPT_BYTES", limit)
    path, body = "/v1/messages", MESSAGE | {"stream": True, "max_tokens": 60}
    async with slow_engine() as one, slow_engine() as two, front([one, two]) as gate:
        for number in range(2):
            gate.report(number, said=PARSED)
        cut(40)
        _, _, stream = await gate.settled(path, body)
        assert b"error" in stream
        assert outcomes(gate) == [("lost", Unresumed.NO_ROOM)]


def part(ids: list[int], **told: Any) -> bytes:
    return comment(Part(ids=ids, **told))


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


def followed(kept: KeptBytes | None = None) -> StreamReplay:
    return StreamReplay(ReplayAsk("d1", 12), kept or KeptBytes(1 << 20))


class TestFollowing:
    def test_another_stream_than_was_begun_is_lost(self) -> None:
        replay = followed()
        sent = [one for each in (part([1], prompt="p"), event("a"), part([2]), event("b")) for one in replay.feed(each)]
        assert (sent, replay.survives, replay.why) == ([event("a"), event("b")], True, "")
        replay.again()
        assert [replay.feed(each) for each in (part([1], prompt="p"), event("a"), part([2]), event("c"))] == [[]] * 4
        assert (replay.lost, replay.why) == (True, Unresumed.DIVERGED)
        assert replay.feed(event("d")) == []

    def test_one_that_ends_before_is_lost_too(self) -> None:
        replay = followed()
        for each in (part([1], prompt="p"), event("a"), event("b")):
            replay.feed(each)
        replay.again()
        replay.feed(event("a"))
        assert replay.dropping
        replay.feed(b"data: [DONE]\n\n")
        assert replay.lost

    def test_what_the_first_worker_told_stays_where_the_second_breaks_off_sooner(self) -> None:
        replay = followed()
        for number, text in enumerate("abc"):
            replay.feed(part([number], prompt="p" if not number else ""))
            replay.feed(event(text))
        known = followed()
        known.again()
        replay.again()
        record, header = replay.record, replay.header
        replay.feed(part([0], prompt="p"))
        replay.feed(event("a"))
        replay.again()
        assert (replay.record, replay.header) == (record, header)
        assert header == (HEADER, f"d1;12;{len(record)}")
        again = [replay.feed(event(text)) for text in "abcd"]
        assert again == [[], [], [], [event("d")]]

    def test_another_prompt_at_the_second_worker_is_told(self) -> None:
        replay = followed()
        replay.feed(part([1], prompt="p"))
        replay.feed(event("a"))
        replay.again()
        replay.feed(part([], off=Unrecorded.PROMPT))
        assert (replay.lost, replay.why) == (True, Unrecorded.PROMPT)

    def test_an_answer_given_up_is_not_passed_on(self) -> None:
        replay = followed()
        replay.feed(part([1], prompt="p"))
        given_up = b'data: {"choices":[{"delta":{},"finish_reason":"abort"}]}\n\n'
        assert (replay.feed(event("a")), replay.feed(given_up), replay.feed(event("b"))) == ([event("a")], [], [])
        assert replay.aborted
        assert replay.survives

    def test_records_and_bodies_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stream_replay, "MAX_RECORD_BYTES", 40)
        replay = followed()
        for number in range(10):
            replay.feed(part([number], prompt="p" if not number else ""))
        assert (replay.why, replay.survives) == (Unresumed.TOO_LONG, False)
        assert replay.kept.held == 0
        kept = KeptBytes(10)
        one, other = followed(kept), followed(kept)
        assert one.keep(b"12345678") == b"12345678"
        assert (other.keep(b"123"), other.why) == (b"", Unresumed.NO_ROOM)
        one.close()
        assert followed(kept).keep(b"123") == b"123"

    def test_all_records_share_a_bound_with_bodies(self) -> None:
        kept = KeptBytes(20)
        one, other = followed(kept), followed(kept)
        assert one.keep(b"12345678")
        for number in range(2):
            one.feed(part([number]))
        other.feed(part([1]))
        assert (kept.held, one.why, other.why) == (20, "", "")
        other.feed(part([2]))
        assert (kept.held, other.why, other.survives) == (16, Unresumed.NO_ROOM, False)
        assert other.feed(event("a")) == [event("a")]
        one.feed(part([3]))
        assert (kept.held, one.why) == (20, "")
        one.close()
        assert kept.held == 0

    @pytest.mark.parametrize("why", ["", Unresumed.NO_ROOM])
    def test_what_native_code_has_noted_goes_behind_it(self, why: str) -> None:
        replay = followed()
        replay.feed(part([1], prompt="p"))
        replay.feed(event("a"))
        told = Trail(b"" if why else b"[2]\n[3]\n", 2, sum(event_digest(event(each)) for each in "bc"), why)
        replay.trail(told)
        assert (replay.why, replay.parts, replay.survives) == (why, 1 if why else 3, not why)
        replay.again()
        if not why:
            assert replay.record.splitlines()[1:] == [b"[2]", b"[3]"]
            assert [replay.feed(event(each)) for each in "abcd"] == [[], [], [], [event("d")]]
            assert not replay.lost
        replay.close()
        assert replay.kept.held == 0

    def test_what_it_notes_after_a_stream_was_made_again_is_counted_once(self) -> None:
        replay = followed()
        replay.feed(part([1], prompt="p"))
        replay.again()
        replay.trail(Trail(part_of(part([1], prompt="p")) + b"\n[2]\n"))
        assert (replay.parts, replay.record.count(b"\n")) == (2, 2)
        replay.trail(Trail(b'{"off":"rounds"}\n'))
        assert replay.why == Unrecorded.ROUNDS
