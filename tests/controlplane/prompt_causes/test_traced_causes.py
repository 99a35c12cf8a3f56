"""Injected causes among real traffic: recorded chats of an agent, of which none has a cause of its own."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from bench.replay_work import TRACES
from cachefleet_controlplane.prompt_causes.prompt_cause import PromptCause
from tests.controlplane.prompt_causes.conversations import tool, words
from tests.controlplane.prompt_causes.prompts import TEMPLATES, Body, Engine

RECORDED: Final = TRACES / "tau-bench" / "airline.json"
TIME: Final = "2024-05-15 15:00:00 EST"
CHATS: Final = 15
TURNS: Final = 6
"""Of a chat, the first ones."""
pytestmark = pytest.mark.skipif(not RECORDED.exists(), reason=f"{RECORDED} is not here: see bench/replay_work.py")


@cache
def chats() -> list[list[Body]]:
    """The messages of chats, in the order of their tasks: several chats of one task come after each other."""
    found = sorted(json.loads(Path(RECORDED).read_text()), key=lambda one: (one["task_id"], one["trial"]))
    return [[_said(message) for message in one["traj"]] for one in found[:CHATS]]


def _said(message: Mapping[str, Any]) -> Body:
    """A message as templates of this test take it: calls of tools as text."""
    called = json.dumps(message["tool_calls"][0]["function"]) if message.get("tool_calls") else ""
    return {"role": message["role"], "content": (message.get("content") or "") + called}


def turns(messages: list[Body], tools: list[Body]) -> Iterator[Body]:
    """The requests of a chat: one before each answer."""
    ends = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    for at in ends[:TURNS]:
        yield {"model": "m", "messages": messages[:at], "tools": tools}


def system(body: Body, change: str, to: str) -> Body:
    first, *rest = body["messages"]
    assert change in first["content"]
    return body | {"messages": [first | {"content": first["content"].replace(change, to)}, *rest]}


def injected(cause: PromptCause, body: Body, rng: random.Random) -> Body:
    """The next request of a chat, changed so that its beginning is another."""
    match cause:
        case PromptCause.TIME:
            return system(body, TIME, f"2024-05-{rng.randrange(16, 31)} {rng.randrange(10, 24)}:11:07 EST")
        case PromptCause.SYSTEM_PROMPT:
            return system(body, "# Airline Agent Policy", f"# {words(rng, 7)}")
        case PromptCause.TOOL_ORDER:
            return body | {"tools": rng.sample(body["tools"], len(body["tools"]))}
        case PromptCause.TOOLS:
            return body | {"tools": [tool(rng, "another"), *body["tools"]]}
        case _:
            return body | {"chat_template_kwargs": {"style": f"Effort {rng.randrange(99)}. "}}


INJECTED: Final = (
    PromptCause.TIME,
    PromptCause.SYSTEM_PROMPT,
    PromptCause.TOOL_ORDER,
    PromptCause.TOOLS,
    PromptCause.PARAMETERS,
)


@pytest.mark.parametrize("template", sorted(set(TEMPLATES) - {"mistral"}))  # which puts tools before the last message
def test_injected_causes_are_named_and_no_other(template: str) -> None:
    rng, engine = random.Random(template), Engine(template)
    tools = [tool(random.Random(number), f"tool_{number}") for number in range(5)]
    named: list[PromptCause] = []
    for number, messages in enumerate(chats()):
        for at, body in enumerate(turns(messages, tools)):
            told = engine.ask(body)
            assert sum(one.tokens for one in told.losses) == told.first_seen
            assert not told.causes, (number, at, told)
        cause = INJECTED[number % len(INJECTED)]
        told = engine.ask(injected(cause, body, rng))
        assert sum(one.tokens for one in told.losses) == told.first_seen
        assert told.causes == {cause}, (number, told)
        named += told.causes
    assert len(named) == CHATS
