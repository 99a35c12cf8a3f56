"""Conversations of made-up text, and one change of each cause to them."""

from __future__ import annotations

import copy
import random
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from cachefleet_controlplane.prompt_causes.prompt_cause import PromptCause
from tests.controlplane.prompt_causes.prompts import Body

# fmt: off
_WORDS: Final = (
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "he",
    "his", "but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which", "one", "you", "were",
    "all", "her", "she", "there", "would", "their", "we", "him", "been", "has", "when", "who", "will", "no",
    "more", "if", "out", "so", "up", "said", "what", "its", "about", "than", "into", "them", "can", "only"
)
# fmt: on


def words(rng: random.Random, count: int) -> str:
    """A text of so many words."""
    return " ".join(rng.choices(_WORDS, k=count)).capitalize() + "."


def tool(rng: random.Random, name: str) -> Body:
    """A function of a tool list."""
    properties = {rng.choice(_WORDS): {"type": "string", "description": words(rng, 12)} for _ in range(3)}
    parameters = {"type": "object", "properties": properties, "required": []}
    return {"type": "function", "function": {"name": name, "description": words(rng, 30), "parameters": parameters}}


def conversation(rng: random.Random, *, turns: int = 3, tools: int = 4, reasoning: bool = False) -> Body:
    """A chat whose last message is the user's; the system text has a time and an id within."""
    at, session = moment(rng), rng.getrandbits(64)
    system = f"{words(rng, 60)} Current time: {at:%Y-%m-%d %H:%M:%S}. Session {session:016x} begins. {words(rng, 160)}"
    body: Body = {"model": "m", "messages": [{"role": "system", "content": system}]}
    if tools:
        body["tools"] = [tool(rng, f"{rng.choice(_WORDS)}_{number}") for number in range(tools)]
    for _ in range(turns):
        body["messages"].append({"role": "user", "content": words(rng, 70)})
        body["messages"].append(answer(rng, reasoning=reasoning))
    body["messages"].append({"role": "user", "content": words(rng, 70)})
    return body


def moment(rng: random.Random) -> datetime:
    """Any time of some years."""
    return datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=rng.randrange(60_000_000))


def answer(rng: random.Random, *, reasoning: bool = False) -> Body:
    """An assistant's message."""
    said = {"role": "assistant", "content": words(rng, 90)}
    return {"role": "assistant", "reasoning_content": words(rng, 60), **said} if reasoning else said


def next_turn(rng: random.Random, body: Body, *, reasoning: bool = False) -> Body:
    """The same conversation a turn later."""
    more = [answer(rng, reasoning=reasoning), {"role": "user", "content": words(rng, 70)}]
    return body | {"messages": [*body["messages"], *more]}


def _with_system(body: Body, change: Callable[[str], str]) -> Body:
    first, *rest = body["messages"]
    return body | {"messages": [first | {"content": change(first["content"])}, *rest]}


_TIMES: Final = (
    "{:%Y-%m-%d %H:%M:%S}",
    "{:%A, %B %d, %Y}",
    "{:%d.%m.%Y %H:%M}",
    "{:%Y-%m-%dT%H:%M:%SZ}",
    "{:%s}",
    "{:%I:%M %p}",
    "{:%m/%d/%Y}",
    "{:%Y年%m月%d日}",
)
_IDS: Final[tuple[Callable[[random.Random], str], ...]] = (
    lambda rng: str(uuid.UUID(int=rng.getrandbits(128))),
    lambda rng: f"{rng.getrandbits(64):016x}",
    lambda rng: f"req_{rng.getrandbits(60):X}7q",
    lambda rng: str(rng.randrange(1000, 99_999)),
    lambda rng: f"user-{rng.randrange(10**6)}",
)


def _replaced(body: Body, mark: str, until: str, text: str) -> Body:
    def change(system: str) -> str:
        before, _, rest = system.partition(mark)
        return f"{before}{mark}{text}{until}{rest.partition(until)[2]}"

    return _with_system(body, change)


def with_time(body: Body, text: str) -> Body:
    """With another time in the system text."""
    return _replaced(body, "Current time: ", ". Session", text)


def with_id(body: Body, text: str) -> Body:
    """With another id in the system text."""
    return _replaced(body, "Session ", " begins", text)


def _time(rng: random.Random, body: Body) -> tuple[Body, Body]:
    style = rng.choice(_TIMES)
    first = with_time(body, style.format(moment(rng)))
    return first, next_turn(rng, with_time(body, style.format(moment(rng))))


def _id(rng: random.Random, body: Body) -> tuple[Body, Body]:
    style = rng.choice(_IDS)
    return with_id(body, style(rng)), next_turn(rng, with_id(body, style(rng)))


def _tool_order(rng: random.Random, body: Body) -> tuple[Body, Body]:
    tools = body["tools"]
    order = [*tools[1:], tools[0]] if rng.random() < 0.5 else tools[::-1]
    return body, next_turn(rng, body | {"tools": order})


def _tools(rng: random.Random, body: Body) -> tuple[Body, Body]:
    tools = copy.deepcopy(body["tools"])
    kind = rng.randrange(3)
    if kind == 0:
        tools[0]["function"]["description"] = words(rng, 25)
    elif kind == 1:
        tools.insert(1, tool(rng, "another"))
    else:
        del tools[rng.randrange(3)]
    return body, next_turn(rng, body | {"tools": tools})


def _system_prompt(rng: random.Random, body: Body) -> tuple[Body, Body]:
    if rng.random() < 0.5:
        return body, next_turn(rng, _with_system(body, lambda _: words(rng, 200)))
    return body, next_turn(rng, _with_system(body, lambda text: f"{words(rng, 9)} {text}"))


def _image(rng: random.Random, body: Body) -> tuple[Body, Body]:
    def pictured(mark: int) -> Body:
        part = {"type": "image_url", "image_url": {"url": f"data:{mark}"}}
        first, asked, *rest = body["messages"]
        text = {"type": "text", "text": asked["content"]}
        return body | {"messages": [first, asked | {"content": [part, text]}, *rest]}

    return pictured(rng.getrandbits(40)), next_turn(rng, pictured(rng.getrandbits(40)))


def _parameters(rng: random.Random, body: Body) -> tuple[Body, Body]:
    return body, next_turn(rng, body | {"chat_template_kwargs": {"style": f"Effort {rng.randrange(9)}. "}})


def _history_dropped(rng: random.Random, body: Body) -> tuple[Body, Body]:
    first, *rest = body["messages"]
    return body, next_turn(rng, body | {"messages": [first, *rest[2:]]})


def _history_edited(rng: random.Random, body: Body) -> tuple[Body, Body]:
    messages = copy.deepcopy(body["messages"])
    kind = rng.randrange(3)
    if kind == 0:
        messages[2]["content"] = words(rng, 80)
    elif kind == 1:
        messages[2]["content"] += " Indeed."
    else:
        messages.insert(2, {"role": "user", "content": words(rng, 20)})
    return body, next_turn(rng, body | {"messages": messages})


def _reasoning_dropped(rng: random.Random, body: Body) -> tuple[Body, Body]:
    first = copy.deepcopy(body)
    first["messages"][2] |= {"reasoning_content": words(rng, 60)}
    if rng.random() < 0.5:  # within the answer
        first["messages"][2] = {"role": "assistant", "content": f"<think>{words(rng, 60)}</think>{words(rng, 5)}"}
    return first, next_turn(rng, body)


INJECTED: Final[Mapping[PromptCause, Callable[[random.Random, Body], tuple[Body, Body]]]] = {
    PromptCause.TIME: _time,
    PromptCause.ID: _id,
    PromptCause.TOOL_ORDER: _tool_order,
    PromptCause.TOOLS: _tools,
    PromptCause.SYSTEM_PROMPT: _system_prompt,
    PromptCause.IMAGE: _image,
    PromptCause.PARAMETERS: _parameters,
    PromptCause.HISTORY_DROPPED: _history_dropped,
    PromptCause.HISTORY_EDITED: _history_edited,
    PromptCause.REASONING_DROPPED: _reasoning_dropped,
}
"""Two requests, of which the second leaves the first one for that cause."""
