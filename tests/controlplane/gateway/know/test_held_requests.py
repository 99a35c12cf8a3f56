"""Requests that go to a worker once: it renders and holds them, and answers when they are placed there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from cachefleet_controlplane.gateway.handles.sending import HandleOutcome
from cachefleet_controlplane.gateway.know import prompt_lookup
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import AnswerStream
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_core.continuation import RefusalCode
from cachefleet_core.engine.held_requests import HOLD_HEADER, LATE_MEMBERS, MEDIA_TYPE, LateMembers
from cachefleet_core.prompt_keys import KEYS_PATH
from cachefleet_core.report_frames import Capability
from tests.controlplane.gateway.converse.talk import PROFILE, keyed
from tests.controlplane.gateway.handles.test_handles import carried, talking
from tests.controlplane.gateway.harness import MODEL, Front, chat, direct, front
from tests.controlplane.gateway.roles import gated, split
from tests.controlplane.waiting import until
from tests.fakes.engine import FakeEngine

MODES: Final = {"keys": "render", "prompts": "on", "conversations": "on", "held": LATE_MEMBERS}
ON: Final = tuple(Capability(feature=name, mode=mode) for name, mode in MODES.items())
CHATS: Final = "/v1/chat/completions"
LONG: Final = "a long question about the weather " * 40
BODIES: Final[list[tuple[str, dict[str, Any]]]] = [
    (CHATS, chat(LONG, temperature=0)),
    (CHATS, chat(LONG, stream=True, n=2)),
    ("/v1/completions", {"model": MODEL, "prompt": LONG, "max_tokens": 2}),
    ("/v1/responses", {"model": MODEL, "input": LONG, "max_output_tokens": 2}),
    ("/v1/messages", {"model": MODEL, "messages": [{"role": "user", "content": LONG}], "max_tokens": 2}),
]


def introduce(gate: Front) -> None:
    for number in range(len(gate.engines)):
        gate.report(number, said={"capabilities": ON, "profile": PROFILE})


def asked(worker: FakeEngine) -> list[tuple[str, bool]]:
    """The path of each request, and whether it is to be held."""
    return [(seen.path, HOLD_HEADER in seen.headers) for seen in worker.requests if seen.method == "POST"]


def messages_of(worker: FakeEngine, *, held: bool) -> list[Any]:
    """The messages of each request that was to be held, or of each other one."""
    asked = [seen for seen in worker.requests if seen.method == "POST" and (HOLD_HEADER in seen.headers) is held]
    return [json.loads(seen.body)["messages"] for seen in asked]


@pytest.mark.parametrize(("path", "body"), BODIES, ids=lambda value: value if isinstance(value, str) else "")
async def test_a_request_goes_once(path: str, body: dict[str, Any]) -> None:
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate)
        status, told, answer = await gate.post(path, body)
        assert (status, asked(worker)) == (200, [(path, True)]), answer
        assert gate.records[-1].knowledge == "exact"
        assert gate.records[-1].rung == "keys"
        assert len(gate.records[-1].attempts) == 1
        assert not any(name.startswith("x-cachefleet-hold") for name in told)


async def test_its_answer_is_the_workers_own() -> None:
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate)
        _, _, answer = await gate.post(CHATS, chat(LONG, temperature=0))
        _, plain = await direct(worker, CHATS, chat(LONG, temperature=0))
        ours, theirs = json.loads(answer), json.loads(plain)
        assert ours["choices"][0]["message"] == theirs["choices"][0]["message"]
        assert ours.keys() == theirs.keys()


async def test_an_invalid_request_gets_the_workers_refusal() -> None:
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate)
        body = chat(LONG, max_tokens=-1)
        status, _, answer = await gate.post(CHATS, body)
        refused, plain = await direct(worker, CHATS, body)
        assert status == refused == 400
        assert json.loads(answer)["error"]["message"] == json.loads(plain)["error"]["message"]


async def test_what_is_placed_elsewhere_is_dropped_and_sent_there() -> None:
    """Both at once, many of them: whoever holds one and is not chosen computes nothing of it."""
    async with keyed() as first, keyed() as second, front([first, second]) as gate:
        introduce(gate)
        bodies = [chat(f"{number} {LONG}", max_tokens=30) for number in range(12)]
        answers = await asyncio.gather(*(gate.post(CHATS, body) for body in bodies))
        assert {status for status, _, _ in answers} == {200}
        held = sum(held for worker in (first, second) for _, held in asked(worker))
        assert held == 12
        assert all(len(record.attempts) == 1 for record in gate.records)
        moved = 0
        for number, worker in enumerate((first, second)):
            assert not worker.worker.scheduler.running
            placed = [
                body["messages"]
                for body, (_, told, _) in zip(bodies, answers, strict=True)
                if told["x-cachefleet-worker"] == f"demo-{number}"
            ]
            elsewhere = [messages for messages in placed if messages not in messages_of(worker, held=True)]
            assert sorted(messages_of(worker, held=False), key=str) == sorted(elsewhere, key=str)
            moved += len(elsewhere)
        assert moved


async def test_a_worker_that_is_gone_before_it_is_told_is_no_error() -> None:
    async with keyed() as worker, front([worker], queue_requests=8) as gate:
        introduce(gate)
        found = gate.gateway._context.upstream.go

        async def late(*given: Any, **more: Any) -> Any:
            given[0].close()  # as if it had waited too long
            return await found(*given, **more)

        gate.gateway._context.upstream.go = late  # type: ignore[method-assign]
        status, _, _ = await gate.post(CHATS, chat(LONG))
        assert (status, asked(worker)) == (200, [(CHATS, True), (CHATS, False)])
        assert len(gate.records[-1].attempts) == 1


async def test_a_worker_that_waits_for_word_is_not_silent() -> None:
    async with keyed() as worker, front([worker], idle_seconds=0.2) as gate:
        introduce(gate)
        found = gate.gateway._context.upstream.go

        async def late(*given: Any, **more: Any) -> Any:
            await asyncio.sleep(0.3)  # in the queue, say
            return await found(*given, **more)

        gate.gateway._context.upstream.go = late  # type: ignore[method-assign]
        status, _, answer = await gate.post(CHATS, chat(LONG))
        assert (status, asked(worker)) == (200, [(CHATS, True)]), answer


async def test_a_worker_that_is_silent_after_the_word_is_given_up() -> None:
    async with keyed() as worker, front([worker], idle_seconds=0.2, max_attempts=1) as gate:
        introduce(gate)
        found = gate.gateway._context.upstream.go

        async def hanging(*given: Any, **more: Any) -> Any:
            worker.hang()
            return await found(*given, **more)

        gate.gateway._context.upstream.go = hanging  # type: ignore[method-assign]
        status, _, _ = await gate.post(CHATS, chat(LONG))
        worker.resume()
        assert (status, asked(worker)) == (504, [(CHATS, True)])


async def test_a_client_that_goes_leaves_nothing_in_the_worker() -> None:
    async with keyed(inter_token_seconds=0.05, natural_tokens=500) as worker, front([worker]) as gate:
        introduce(gate)
        client = asyncio.create_task(gate.post(CHATS, chat(LONG, max_tokens=400)))
        await until(lambda: bool(worker.worker.scheduler.running))
        client.cancel()
        assert asked(worker) == [(CHATS, True)]
        await until(lambda: not worker.worker.scheduler.running)


@pytest.mark.parametrize(("threshold", "finish"), [(0.0, "length"), (0.4, "cache_threshold")])
async def test_a_callers_own_threshold_is_held_with_its_body(threshold: float, finish: str) -> None:
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate)
        status, _, answer = await gate.post(CHATS, chat(LONG, cache_hit_threshold=threshold))
        assert (status, asked(worker), worker.plugin.late_members) == (200, [(CHATS, True)], [LateMembers()])
        assert json.loads(answer)["choices"][0]["finish_reason"] == finish


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_pools_threshold_comes_with_word(*, stream: bool) -> None:
    async with keyed() as one, keyed() as two, gated(one, two) as fleet:
        fleet.report(capabilities=ON)
        _, headers, _ = await fleet.gate.post(CHATS, chat(LONG))
        fleet.report(capabilities=ON)
        holder = fleet.engine(headers["x-cachefleet-worker"])
        assert await fleet.gate.settled(CHATS, chat(LONG, stream=stream))
        assert (asked(holder), holder.plugin.late_members) == ([(CHATS, True)] * 2, [LateMembers(), LateMembers(0.5)])
        assert [attempt.threshold for attempt in fleet.gate.records[-1].attempts] == [0.5]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_held_request_that_the_gate_refuses_goes_elsewhere(*, stream: bool) -> None:
    async with keyed() as one, keyed() as two, gated(one, two) as fleet:
        fleet.report(capabilities=ON)
        _, headers, _ = await fleet.gate.post(CHATS, chat(LONG))
        fleet.report(capabilities=ON)
        holder = headers["x-cachefleet-worker"]
        assert fleet.engine(holder).reset_prefix_cache()
        status, headers, answer = await fleet.gate.settled(CHATS, chat(LONG, stream=stream))
        first, second = fleet.gate.records[-1].attempts
        assert (status, first.worker, first.outcome, first.threshold) == (200, holder, "gate_refused", 0.5)
        assert (second.worker, second.threshold) == (headers["x-cachefleet-worker"], 0)
        assert b"cache_threshold" not in answer
        assert asked(fleet.engine(holder))[:2] == [(CHATS, True)] * 2


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_decode_worker_is_told_with_word_where_the_blocks_are(*, stream: bool) -> None:
    async with keyed(connector="nixl") as one, keyed(connector="nixl") as two, split([one], [two]) as fleet:
        fleet.report(capabilities=ON)
        status, headers, answer = await fleet.gate.settled(CHATS, chat(LONG, stream=stream))
        assert (status, headers["x-cachefleet-worker"]) == (200, "decode-0"), answer
        assert [(worker, kind) for worker, kind, _ in fleet.attempts] == [
            ("prefill-0", "prefill"),
            ("decode-0", "answer"),
        ]
        assert asked(two) == [(CHATS, True)]
        (members,) = two.plugin.late_members
        params = members.kv_transfer_params
        assert isinstance(params, dict)
        assert (params["do_remote_prefill"], params["remote_port"]) == (True, 5600)


async def test_blocks_that_a_lost_worker_may_have_taken_are_transferred_anew() -> None:
    """What a Prefill worker keeps is fetched once."""
    async with keyed(connector="nixl") as one, keyed(connector="nixl") as two, split([one], [two]) as fleet:
        fleet.report(capabilities=ON)
        upstream = fleet.gate.gateway._context.upstream
        found, words = upstream.go, 0

        async def broken(*given: Any, **more: Any) -> Any:
            nonlocal words
            words += 1
            if words == 1:
                given[0].close()
            return await found(*given, **more)

        upstream.go = broken  # type: ignore[method-assign]
        assert (await fleet.gate.settled(CHATS, chat(LONG)))[0] == 200
        kinds = [(worker, kind, outcome) for worker, kind, outcome in fleet.attempts]
        assert kinds[:2] == [("prefill-0", "prefill", "answered"), ("decode-0", "answer", "lost")]
        assert kinds[2:] == [("prefill-0", "prefill", "answered"), ("decode-0", "answer", "answered")]


async def test_what_fails_after_the_keys_leaves_nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate)
        assert (await gate.post(CHATS, chat(LONG)))[0] == 200
        calls = gate.gateway._context.upstream._completions._handlers
        await until(lambda: not any("Call" in repr(handler) for handler in calls.values()))
        monkeypatch.setattr(prompt_lookup, "routing_prompt", None)
        assert (await gate.post(CHATS, chat(LONG)))[0] == 500
        assert asked(worker) == [(CHATS, True)] * 2
        await until(lambda: not any("Call" in repr(handler) for handler in calls.values()))


async def test_a_plugin_that_takes_no_late_members_is_sent_the_whole_where_there_are_some() -> None:
    async with keyed() as worker, gated(worker) as fleet:
        older = [Capability(feature="held", mode="on"), *(one for one in ON if one.feature != "held")]
        fleet.report(capabilities=older)
        for _ in range(2):
            assert (await fleet.gate.post(CHATS, chat(LONG)))[0] == 200
            fleet.report(capabilities=older)
        assert asked(worker) == [(CHATS, True), (CHATS, True), (CHATS, False)]
        assert worker.plugin.late_members == [LateMembers()]
        assert fleet.sent("demo-0")[-1]["cache_hit_threshold"] == 0.5
        await until(lambda: not worker.worker.scheduler.running)


async def test_one_of_several_prompts_is_not_held() -> None:
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate)
        body = {"model": MODEL, "prompt": [LONG, "b"], "max_tokens": 2}
        assert (await gate.post("/v1/completions", body))[0] == 200
        assert asked(worker) == [(KEYS_PATH, False), ("/v1/completions", False)]


async def test_what_nobody_will_answer_is_not_held() -> None:
    """A decision alone: the client sends the request itself."""
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate)
        status, _, told = await gate.post("/v1/route", chat(LONG))
        assert (status, asked(worker)) == (200, [(KEYS_PATH, False)]), told


@pytest.mark.parametrize(("path", "body"), BODIES, ids=lambda value: value if isinstance(value, str) else "")
async def test_a_plugin_that_holds_nothing_is_asked_for_keys_of_every_api(path: str, body: dict[str, Any]) -> None:
    async with keyed() as worker, front([worker]) as gate:
        gate.report(0, said={"capabilities": [Capability(feature="keys", mode="render")], "profile": PROFILE})
        assert (await gate.post(path, body))[0] == 200
        assert (asked(worker), gate.records[-1].rung) == ([(KEYS_PATH, False), (path, False)], "keys")


async def test_a_vllm_that_renders_no_responses_still_gives_keys_of_chats() -> None:
    async with keyed() as worker, front([worker]) as gate:
        gate.report(0, said={"capabilities": [Capability(feature="keys", mode="render")]})
        worker.plugin.lacking = {"responses"}
        for _ in range(2):
            assert (await gate.post(*BODIES[3]))[0] == 200
        assert asked(worker).count((KEYS_PATH, False)) == 1  # it is not asked again for a while
        assert (await gate.post(*BODIES[0]))[0] == 200
        assert asked(worker).count((KEYS_PATH, False)) == 2


async def test_who_has_the_text_is_asked_first() -> None:
    async with keyed() as first, keyed() as second, front([first, second], texts=True) as gate:
        introduce(gate)
        texts = ["the sea " * 60, "the wind " * 60]
        answers = await asyncio.gather(*(gate.post(CHATS, chat(text, max_tokens=30)) for text in texts))
        sent = {told["x-cachefleet-worker"]: text for (_, told, _), text in zip(answers, texts, strict=True)}
        for number, worker in enumerate((first, second)):
            text = sent[f"demo-{number}"]
            before = asked(worker)
            for turn in range(4):
                await gate.post(CHATS, chat(f"{text}, and {turn}"))
            assert asked(worker) == before + [(CHATS, True)] * 4


async def test_a_prompt_without_keys_is_asked_for_on_other_rungs() -> None:
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate)
        worker.plugin.lacking = {"responses"}
        status, _, answer = await gate.post(*BODIES[3])
        assert status == 200, answer
        assert asked(worker)[0] == ("/v1/responses", True)
        await until(lambda: not worker.worker.scheduler.running)


async def test_a_worker_that_hangs_between_is_left_within_the_time_for_rendering() -> None:
    async with keyed() as worker, keyed() as other, front([worker, other], render_seconds=0.6) as gate:
        introduce(gate)
        for each in (worker, other):
            each.hang()
        asking = asyncio.create_task(gate.post(CHATS, chat(LONG)))
        await until(lambda: any(seen for seen in gate.records) or asking.done() or not worker.worker.going.is_set())
        await asyncio.sleep(0)
        worker.resume()
        other.resume()
        assert (await asking)[0] == 200


async def test_a_worker_that_holds_none_any_more_is_asked_for_keys() -> None:
    """What it announced stands until its engine is started anew."""
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate)
        worker.plugin.holds = False
        for _ in range(2):
            assert (await gate.post(CHATS, chat(LONG)))[0] == 200
            assert gate.records[-1].rung == "keys"
        asking = (KEYS_PATH, False), (CHATS, False)
        assert asked(worker) == [(CHATS, True), *asking, *asking]


async def test_turns_by_handle_are_held_too(tmp_path: Path) -> None:
    async with keyed() as worker, talking(tmp_path, worker) as (gate, _):
        introduce(gate)
        messages = [{"role": "user", "content": LONG}]
        for turn in range(3):
            assert (await gate.post(CHATS, chat("", messages=messages)))[0] == 200
            assert carried(worker)[-1:] == [(CHATS, 1 if not turn else 2, bool(turn))]
            messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": f"{turn}{LONG}"}]
        assert len(carried(worker)) == 3
        assert [record.continuation for record in gate.records] == [None, HandleOutcome.HIT, HandleOutcome.HIT]


async def test_a_lost_handle_is_followed_by_the_whole_to_be_held(tmp_path: Path) -> None:
    async with keyed() as worker, talking(tmp_path, worker) as (gate, _):
        introduce(gate)
        messages = [{"role": "user", "content": LONG}]
        await gate.post(CHATS, chat("", messages=messages))
        worker.plugin.conversations.store.clear()
        messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": LONG}]
        assert (await gate.post(CHATS, chat("", messages=messages)))[0] == 200
        assert carried(worker) == [(CHATS, 1, False), (CHATS, 2, True), (CHATS, 3, False)]
        assert worker.plugin.conversations.store.stats()[RefusalCode.HANDLE_UNKNOWN] == 1


async def test_the_connection_is_used_again() -> None:
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate)
        for _ in range(3):
            assert (await gate.post(CHATS, chat(LONG)))[0] == 200
        assert worker.connections == 1


@pytest.mark.parametrize("usage", [False, True])
async def test_native_code_relays_its_stream_from_the_beginning(
    *, usage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Python is given of it are the ends that native code has told of."""
    read: list[bytes] = []
    more = AnswerStream.more

    async def watched(stream: AnswerStream) -> list[bytes]:
        events = await more(stream)
        read.extend(events)
        return events

    monkeypatch.setattr(AnswerStream, "more", watched)
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate)
        options = {"stream_options": {"include_usage": True}} if usage else {}
        status, _, answer = await gate.post(CHATS, chat(LONG, stream=True, max_tokens=12, **options))
        assert (status, asked(worker)) == (200, [(CHATS, True)])
        assert answer.count(b'"content"') > 3
        assert answer.endswith(b"data: [DONE]\n\n")
        assert (b'"usage":{' in answer) is usage
        assert not read
        await until(lambda: bool(gate.records and gate.records[-1].completion_tokens))


async def test_a_worker_that_says_no_frame_is_asked_once() -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        kind = f"content-type: {MEDIA_TYPE}".encode()
        writer.write(b"HTTP/1.1 200 OK\r\n" + kind + b"\r\nconnection: close\r\n\r\n" + b"x" * 40)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with (
        server,
        Completions() as completions,
        Upstream(completions, connect_seconds=5, idle_seconds=5) as upstream,
    ):
        opened = await upstream.hold(url, CHATS, b"{}", headers=[], seconds=10)
    assert (opened.outcome, len(asked)) == (Outcome.OVERSIZED, 1)
