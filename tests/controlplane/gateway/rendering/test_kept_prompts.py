"""A prompt that a worker has rendered for its keys is named to that worker, and to no other, when it is to answer."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from cachefleet_core.prompt_keys import PROMPT_HEADER
from cachefleet_core.report_frames import Capability
from tests.controlplane.gateway.conversations.talk import keyed
from tests.controlplane.gateway.harness import MODEL, Front, chat, front
from tests.fakes.engine import FakeEngine, Seen

ON: Final = tuple(Capability(feature=name, mode=mode) for name, mode in {"keys": "render", "prompts": "on"}.items())
OLDER: Final = ON[:1]
LONG: Final = "a long question about the weather " * 20
BODIES: Final[list[tuple[str, dict[str, Any]]]] = [
    ("/v1/chat/completions", chat(LONG)),
    ("/v1/chat/completions", chat(LONG, stream=True, n=2)),
    ("/v1/completions", {"model": MODEL, "prompt": LONG, "max_tokens": 2}),
    ("/v1/responses", {"model": MODEL, "input": LONG, "max_output_tokens": 2}),
    ("/v1/messages", {"model": MODEL, "messages": [{"role": "user", "content": LONG}], "max_tokens": 2}),
]


def introduce(gate: Front, *capabilities: tuple[Capability, ...]) -> None:
    for number, said in enumerate(capabilities):
        gate.report(number, said={"capabilities": said})


def named(worker: FakeEngine) -> list[str]:
    """The handles in requests for answers."""
    return [seen.headers.get(PROMPT_HEADER, "") for seen in _answered(worker)]


def _answered(worker: FakeEngine) -> list[Seen]:
    return [seen for seen in worker.requests if _answers(seen.path)]


def asked(worker: FakeEngine) -> int:
    return sum(seen.path == "/v1/fleet/keys" for seen in worker.requests)


def _answers(path: str) -> bool:
    return path.startswith("/v1/") and not path.startswith("/v1/fleet") and not path.endswith("/render")


@pytest.mark.parametrize(("path", "body"), BODIES, ids=lambda value: value if isinstance(value, str) else "")
async def test_whoever_rendered_is_told_what_it_keeps(path: str, body: dict[str, Any]) -> None:
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate, ON)
        status, told, _ = await gate.post(path, body)
        assert status == 200
        assert named(worker) == worker.plugin.handles
        assert len(worker.plugin.handles) == 1
        assert PROMPT_HEADER not in told


async def test_a_client_names_no_prompt() -> None:
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate, OLDER)
        await gate.post("/v1/chat/completions", chat(LONG), **{PROMPT_HEADER: "0" * 16 + "-" + "0" * 32})
        assert named(worker) == [""]


@pytest.mark.parametrize(("path", "body"), BODIES[-2:], ids=["responses", "messages"])
async def test_older_plugins_keep_nothing_and_are_not_asked_for_what_they_do_not_know(
    path: str, body: dict[str, Any]
) -> None:
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate, OLDER)
        assert (await gate.post(path, body))[0] == 200
        assert (asked(worker), worker.plugin.handles, named(worker)) == (0, [], [""])


async def test_a_vllm_that_renders_no_responses_still_gives_keys_of_chats() -> None:
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate, ON)
        worker.plugin.lacking = {"responses"}
        for _ in range(2):
            assert (await gate.post(*BODIES[3]))[0] == 200
        assert asked(worker) == 1  # it is not asked again for a while
        assert (await gate.post(*BODIES[0]))[0] == 200
        assert (asked(worker), named(worker)) == (2, ["", "", *worker.plugin.handles])
        assert worker.plugin.handles


async def test_one_of_several_prompts_is_not_kept() -> None:
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate, ON)
        await gate.post("/v1/completions", {"model": MODEL, "prompt": [LONG, "b"], "max_tokens": 2})
        assert (asked(worker), worker.plugin.handles, named(worker)) == (1, [], [""])


async def test_what_nobody_will_answer_is_not_kept() -> None:
    """A decision alone: the client sends the request itself, and cannot name a prompt."""
    async with keyed() as worker, front([worker]) as gate:
        introduce(gate, ON)
        status, _, told = await gate.post("/v1/route", chat(LONG))
        assert (status, asked(worker), worker.plugin.handles) == (200, 1, []), told


async def test_nobody_is_told_what_another_keeps() -> None:
    """Requests at once spread over both; whoever was asked is not always who answers."""
    async with keyed() as first, keyed() as second, front([first, second]) as gate:
        introduce(gate, ON, ON)
        body = chat(LONG, max_tokens=30)
        await asyncio.gather(*(gate.post("/v1/chat/completions", body) for _ in range(12)))
        assert first.plugin.handles
        for worker in (first, second):
            assert set(named(worker)) <= {"", *worker.plugin.handles}


async def test_whoever_holds_the_text_is_asked_first() -> None:
    async with keyed() as first, keyed() as second, front([first, second], texts=True) as gate:
        introduce(gate, ON, ON)
        texts = ["the sea " * 60, "the wind " * 60]
        await asyncio.gather(*(gate.post("/v1/chat/completions", chat(text, max_tokens=30)) for text in texts))
        for worker in (first, second):
            (held,) = (text for text in texts if any(text.encode() in seen.body for seen in _answered(worker)))
            before = asked(worker)
            for turn in range(4):
                await gate.post("/v1/chat/completions", chat(f"{held}, and {turn}"))
            assert asked(worker) == before + 4
            assert named(worker)[-4:] == worker.plugin.handles[-4:]
