"""Injected causes of all kinds among real traffic: recorded chats of an agent, of which none has a cause of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import pytest
from cachefleet_native import shared_blocks

from cachefleet_controlplane.prompt_causes.prompt_cause import PromptCause
from tests.controlplane.prompt_causes.conversations import tool, words
from tests.controlplane.prompt_causes.prompts import TEMPLATES, Body, Engine
from tests.controlplane.prompt_causes.recorded_chats import DESK, HEADING, RECORDED, TIME, TURNS, chats, retold

KINDS: Final = (
    PromptCause.TIME,
    PromptCause.ID,
    PromptCause.TOOL_ORDER,
    PromptCause.TOOLS,
    PromptCause.HISTORY_EDITED,
    PromptCause.HISTORY_DROPPED,
    PromptCause.REASONING_DROPPED,
    PromptCause.SYSTEM_PROMPT,
    PromptCause.IMAGE,
    PromptCause.PARAMETERS,
    PromptCause.SALT,
    PromptCause.BLOCK_STRADDLE,
)
EACH: Final = 3
"""Of each kind under each template."""
OPEN: Final = 4
"""Chats that go on at a time."""
LARGE: Final = 1024
"""Tokens of a block in which a common beginning ends."""
KEEP_REASONING: Final = frozenset({"llama3", "mistral"})
"""Templates that render reasoning of earlier turns, too."""
pytestmark = pytest.mark.skipif(not RECORDED.exists(), reason=f"{RECORDED} is not here: see bench/replay_work.py")


class Asked(NamedTuple):
    """One request of a chat, and the cause that was put into it."""

    body: Body
    cause: PromptCause | None = None
    salt: str = ""


def pictured(messages: list[Body], mark: int) -> list[Body]:
    """With an image before the first question."""
    first, asked, *rest = messages
    image = {"type": "image_url", "image_url": {"url": f"data:{mark}"}}
    return [first, asked | {"content": [image, {"type": "text", "text": asked["content"]}]}, *rest]


def reasoned(rng: random.Random, body: Body, template: str) -> Iterator[Body]:
    """A turn within which an answer has its reasoning, and the next one, to which it is not rendered any more."""
    answer = {"role": "assistant", "content": words(rng, 20)}
    told = [{"role": "tool", "content": words(rng, 120)}]
    with_reasoning = answer | {"reasoning_content": words(rng, 80)}
    yield body | {"messages": [*body["messages"], with_reasoning, *told]}
    kept = answer if template in KEEP_REASONING else with_reasoning
    later = [{"role": "assistant", "content": words(rng, 9)}, {"role": "user", "content": words(rng, 9)}]
    yield body | {"messages": [*body["messages"], kept, *told, *later]}


def edited(body: Body) -> Body:
    """With a word more in the first answer."""
    system, asked, answered, *rest = body["messages"]
    return body | {"messages": [system, asked, answered | {"content": f"{answered['content']} Indeed."}, *rest]}


def dropped(body: Body) -> Body:
    """Without the first question and its answer."""
    return body | {"messages": [body["messages"][0], *body["messages"][3:]]}


def repictured(body: Body, mark: int) -> Body:
    """With another image."""
    first, asked, *rest = body["messages"]
    plain = asked | {"content": asked["content"][1]["text"]}
    return body | {"messages": pictured([first, plain, *rest], mark)}


CHANGES: Final[Mapping[PromptCause, Callable[[Body, random.Random], Body]]] = {
    PromptCause.TIME: lambda body, rng: retold(body, TIME, f"2024-05-{rng.randrange(16, 31)} 11:07:09 EST"),
    PromptCause.ID: lambda body, rng: retold(body, DESK, f"Desk {rng.randrange(5000, 9999)}"),
    PromptCause.SYSTEM_PROMPT: lambda body, rng: retold(body, HEADING, f"# {words(rng, 7)}"),
    PromptCause.TOOL_ORDER: lambda body, _: body | {"tools": body["tools"][::-1]},
    PromptCause.TOOLS: lambda body, rng: body | {"tools": [tool(rng, "another"), *body["tools"]]},
    PromptCause.HISTORY_EDITED: lambda body, _: edited(body),
    PromptCause.HISTORY_DROPPED: lambda body, _: dropped(body),
    PromptCause.IMAGE: lambda body, rng: repictured(body, rng.getrandbits(40)),
    PromptCause.PARAMETERS: lambda body, rng: body | {"chat_template_kwargs": {"style": f"Effort {rng.random()}. "}},
    PromptCause.REASONING_DROPPED: lambda body, _: body,
    PromptCause.SALT: lambda body, _: body,
}
"""What makes the beginning of a chat's next request another."""


def chat(cause: PromptCause, messages: list[Body], rng: random.Random, template: str) -> Iterator[Asked]:
    """The requests of a chat, one before each answer, and then one with the cause."""
    tools = [tool(random.Random(number), f"tool_{number}") for number in range(5)]
    body: Body = {"model": "m"} if template == "mistral" else {"model": "m", "tools": tools}
    if cause is PromptCause.IMAGE:
        messages = pictured(messages, rng.getrandbits(40))
    *ends, last = [at for at, message in enumerate(messages) if message["role"] == "assistant"][: TURNS + 1]
    yield from (Asked(body | {"messages": messages[:at]}) for at in ends)
    body = body | {"messages": messages[:last]}
    if cause is PromptCause.REASONING_DROPPED:
        first, body = reasoned(rng, body, template)
        yield Asked(first)
    yield Asked(CHANGES[cause](body, rng), cause, str(rng.random()) if cause is PromptCause.SALT else "")


class From(NamedTuple):
    """A request, of whom, and the name of its chat."""

    tenant: str
    chat: str
    asked: Asked


def mixed(template: str, rng: random.Random) -> Iterator[From]:
    """Requests of all chats of one tenant, those of some chats in turns."""
    kinds = [kind for kind in KINDS * EACH if kind is not PromptCause.BLOCK_STRADDLE]
    if template == "mistral":  # which puts tools before the last message
        kinds = [kind for kind in kinds if kind not in {PromptCause.TOOLS, PromptCause.TOOL_ORDER}]
    of_kinds = enumerate(zip(kinds, chats(len(kinds)), strict=True))
    waiting = [(str(at), chat(kind, messages, rng, template)) for at, (kind, messages) in of_kinds]
    going = [waiting.pop() for _ in range(OPEN)]
    while going:
        one = rng.choice(going)
        if (asked := next(one[1], None)) is not None:
            yield From("acme", one[0], asked)
        else:
            going.remove(one)
            going += [waiting.pop()] if waiting else []


def tools_late(rng: random.Random) -> Iterator[From]:
    """The kinds of tools where tools come late: each chat is a tenant's own, for they move with each turn."""
    tools = [tool(random.Random(number), f"tool_{number}") for number in range(5)]
    for number, messages in enumerate(chats(2 * EACH)):
        first, later = ({"model": "m", "tools": tools, "messages": messages[:end]} for end in (2, 4))
        cause = (PromptCause.TOOL_ORDER, PromptCause.TOOLS)[number % 2]
        of = f"tenant {number}"
        yield from (From(of, of, Asked(first)), From(of, of, Asked(CHANGES[cause](later, rng), cause)))


def straddling() -> Iterator[From]:
    """Two chats of each of some agents, each in one message: in large blocks their common beginning ends within one."""
    for number in range(EACH):
        for at, messages in enumerate(chats(2 * EACH)[2 * number : 2 * number + 2]):
            rules = messages[0] | {"content": messages[0]["content"][:2100]}
            said = " ".join(str(one["content"]) for one in messages[1:])[:1900]
            body: Body = {"model": "m", "messages": [rules, {"role": "user", "content": said}]}
            cause = PromptCause.BLOCK_STRADDLE if at else None
            yield From(f"agent {number}", f"agent {number}", Asked(body, cause))


@pytest.mark.parametrize("template", TEMPLATES)
def test_injected_causes_are_named_with_their_place_and_no_other(template: str) -> None:
    """Of all kinds under each of four templates, 144 in all, among 1,030 requests without one."""
    rng = random.Random(template)
    engine, large = Engine(template), Engine(template, block_size=LARGE)
    requests = [(engine, one) for one in mixed(template, rng)]
    requests += [(engine, one) for one in (tools_late(rng) if template == "mistral" else ())]
    requests += [(large, one) for one in straddling()]
    named: list[PromptCause] = []
    others = 0
    before: dict[tuple[int, str], bytes] = {}
    for number, (at, (tenant, chat, asked)) in enumerate(requests):
        told = at.ask(asked.body, tenant=tenant, salt=asked.salt)
        assert sum(one.tokens for one in told.losses) == told.first_seen
        assert told.causes == {asked.cause} - {None}, (number, told)
        if asked.cause is not None:
            assert told.relation is not None
            own = told.relation.blocks == shared_blocks(told.keys, before[at.block_size, chat])
            # A prompt under other parameters may have more of the same text than the chat's own last one.
            assert own or (told.relation.parameters and asked.cause is not PromptCause.PARAMETERS), (number, told)
            others += not own
        before[at.block_size, chat] = told.keys
        named += told.causes
    assert sorted(named) == sorted(KINDS * EACH)
    assert others <= 1
    assert len(requests) - len(named) >= 220
