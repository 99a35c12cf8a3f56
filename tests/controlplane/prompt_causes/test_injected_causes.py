"""Injected causes are named right, with their position to the block; prompts without a cause have none."""

from __future__ import annotations

import operator
import random

import pytest

from cachefleet_controlplane.prompt_causes.prompt_cause import (
    LEAST_TOKENS,
    ROLES,
    Difference,
    Examined,
    PartKind,
    PromptCause,
    PromptLoss,
    Relation,
    prompt_losses,
)
from tests.controlplane.prompt_causes.conversations import (
    INJECTED,
    answer,
    conversation,
    moment,
    next_turn,
    with_time,
    words,
)
from tests.controlplane.prompt_causes.prompts import TEMPLATES, Body, Engine, check

EACH = 4
"""Of each cause and template."""
PARTS = {
    PromptCause.TIME: PartKind.SYSTEM,
    PromptCause.ID: PartKind.SYSTEM,
    PromptCause.TOOL_ORDER: PartKind.TOOL,
    PromptCause.TOOLS: PartKind.TOOL,
    PromptCause.SYSTEM_PROMPT: PartKind.SYSTEM,
    PromptCause.IMAGE: PartKind.MEDIA,
    PromptCause.HISTORY_DROPPED: PartKind.TEXT,
    PromptCause.HISTORY_EDITED: PartKind.TEXT,
    PromptCause.REASONING_DROPPED: PartKind.TEXT,
}
"""What of a prompt an injected cause changes; parameters are no part of it."""


def changed(first: Body, second: Body) -> tuple[str, int]:
    """The role and number of the first tool that is another, else of the first message."""
    tools, others = first.get("tools", []), second.get("tools", [])
    if tools != others:
        return "system", [*map(operator.ne, tools, others), True].index(True)
    at = list(map(operator.ne, first["messages"], second["messages"])).index(True)
    return str(second["messages"][at]["role"]), at


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("cause", INJECTED)
def test_injected_causes_are_named(template: str, cause: PromptCause) -> None:
    rng = random.Random(f"{template} {cause}")
    engine = Engine(template)
    for number in range(EACH):
        for _ in range(2):  # traffic of others, without a cause
            assert not engine.ask(conversation(rng), tenant="other").causes
        first, second = INJECTED[cause](rng, conversation(rng, turns=2 + number % 3))
        if template == "mistral" and cause is not PromptCause.TOOL_ORDER and cause is not PromptCause.TOOLS:
            first, second = ({name: body[name] for name in body if name != "tools"} for body in (first, second))
        assert not engine.ask(first).causes
        told = engine.ask(second)
        check(told)
        assert told.causes == {cause}, (number, told)
        if cause in PARTS:
            assert told.relation is not None
            role, index = changed(first, second)
            assert (told.relation.part, ROLES[told.relation.role]) == (PARTS[cause], role), (number, told)
            assert told.relation.index == index, (number, told)


def test_these_are_all_causes_that_a_prompt_can_have_and_120_of_them() -> None:
    assert len(INJECTED) * len(TEMPLATES) * EACH >= 120
    assert set(INJECTED) == {*PARTS, PromptCause.PARAMETERS}


@pytest.mark.parametrize("template", TEMPLATES)
def test_another_salt_is_named(template: str) -> None:
    rng = random.Random(template)
    engine = Engine(template)
    for _ in range(EACH):
        body = conversation(rng, tools=0)
        assert not engine.ask(body, salt="1").causes
        told = engine.ask(next_turn(rng, body), salt="2")
        assert told.causes == {PromptCause.SALT}
        assert told.relation is not None
        assert told.relation.blocks == 0


def test_what_a_template_changes_is_named() -> None:
    """Reasoning dropped behind a later question, a date of the template's own, tools before the last message."""
    rng = random.Random(5)
    for _ in range(EACH):
        body = conversation(rng, reasoning=True, tools=0, turns=1)
        body = body | {"messages": [*body["messages"], answer(rng, reasoning=True), answer(rng, reasoning=True)]}
        for template in ("qwen", "deepseek"):
            engine = Engine(template)
            assert not engine.ask(body).causes
            told = engine.ask(next_turn(rng, body))
            check(told)
            assert told.causes == {PromptCause.REASONING_DROPPED}
        engine, body = Engine("llama3"), conversation(rng)
        assert not engine.ask(body).causes
        told = engine.ask(next_turn(rng, body), today="28 Nov 2026")
        check(told)
        assert told.causes == {PromptCause.TEMPLATE}
        engine = Engine("mistral")
        assert not engine.ask(body).causes
        told = engine.ask(next_turn(rng, body))
        check(told)
        assert told.causes == {PromptCause.TEMPLATE}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_common_beginning_that_ends_within_a_large_block_is_named(template: str) -> None:
    rng = random.Random(template)
    for _ in range(EACH):
        engine = Engine(template, block_size=1024)
        first = conversation(rng, turns=0, tools=0)
        rules = first["messages"][0]
        assert not engine.ask(first).causes
        told = engine.ask(first | {"messages": [rules, {"role": "user", "content": words(rng, 700)}]})
        assert told.first_seen > 0
        check(told, 1024)
        assert told.causes == {PromptCause.BLOCK_STRADDLE}
        [straddle] = [one for one in told.losses if one.cause is PromptCause.BLOCK_STRADDLE]
        assert straddle.tokens <= 1024


@pytest.mark.parametrize(
    ("block_size", "cause", "tokens"), [(1024, PromptCause.BLOCK_STRADDLE, 1024), (128, PromptCause.TEMPLATE, 1050)]
)
def test_an_estimate_of_little_more_than_a_block_is_no_change_of_the_template(
    block_size: int, cause: PromptCause, tokens: int
) -> None:
    """Half of a prompt of 2,100 tokens by its bytes: a block of 1,024 may have all of it, eight of 128 cannot."""
    relation = Relation(
        blocks=0,
        tokens=2100,
        text_bytes=4000,
        difference=Difference.BRANCH,
        part=PartKind.TEXT,
        before=2000,
        after=2000,
        same=0,
    )
    servable = 2099 // block_size * block_size
    prompt = Examined(prompt_tokens=2100, block_size=block_size, first_seen=servable, servable=servable)
    first, *_ = prompt_losses(relation, prompt)
    assert first == PromptLoss(cause, tokens)


def asked(rng: random.Random, body: Body) -> Body:
    """The same beginning with a question of its own."""
    return body | {"messages": [*body["messages"][:1], {"role": "user", "content": words(rng, rng.randrange(4, 200))}]}


def with_numbers(rng: random.Random, body: Body) -> Body:
    """A question that differs from others in a number and what follows it."""
    text = f"Translate item {rng.randrange(9999)}: {words(rng, 30)}"
    return body | {"messages": [*body["messages"][:1], {"role": "user", "content": text}]}


def retold(rng: random.Random, body: Body) -> Body:
    """A turn asked anew in other words: the conversation goes another way from there."""
    return body | {"messages": [*body["messages"][:3], {"role": "user", "content": words(rng, 60)}]}


@pytest.mark.parametrize("template", TEMPLATES)
def test_prompts_without_a_cause_have_none(template: str) -> None:
    """A thousand over the templates: turns, new conversations of one agent or of many, questions asked anew."""
    rng = random.Random(template)
    engine = Engine(template)
    tools = 0 if template == "mistral" else 3
    agents = [conversation(rng, turns=1, tools=tools) for _ in range(6)]
    open_: list[Body] = [asked(rng, agent) for agent in agents]
    for number in range(250):
        at = rng.randrange(len(open_))
        kind = number % 5
        if kind < 2:
            open_[at] = next_turn(rng, open_[at]) if len(open_[at]["messages"]) < 14 else asked(rng, rng.choice(agents))
        else:
            change = (asked, with_numbers, retold)[kind - 2]
            open_[at] = change(rng, open_[at] if change is retold and rng.random() < 0.5 else rng.choice(agents))
        told = engine.ask(open_[at])
        check(told)
        assert not told.causes, (number, kind, told)


def test_no_tenant_is_compared_with_another() -> None:
    rng = random.Random(3)
    engine = Engine("qwen")
    body = conversation(rng)
    engine.ask(body, tenant="one")
    told = engine.ask(with_time(body, f"{moment(rng):%Y-%m-%d}"), tenant="two")
    assert told.relation is None
    assert {one.cause for one in told.losses} == {PromptCause.NEW}


def test_what_a_mend_is_worth_is_what_would_have_been_served() -> None:
    """Of a time at the beginning: all the rest of the earlier prompt, within a tenth."""
    rng = random.Random(8)
    for template in TEMPLATES:
        engine = Engine(template)
        body = conversation(rng, tools=0)
        before = engine.ask(body)
        told = engine.ask(next_turn(rng, with_time(body, f"{moment(rng):%Y-%m-%d}")))
        [time] = [one for one in told.losses if one.cause is PromptCause.TIME]
        assert time.tokens == pytest.approx(before.tokens - told.served, rel=0.1)


def test_few_tokens_are_not_examined() -> None:
    engine, rng = Engine("qwen"), random.Random(1)
    body: Body = {"model": "m", "messages": [{"role": "user", "content": words(rng, 5)}]}
    told = engine.ask(body)
    assert 0 < told.first_seen < LEAST_TOKENS
    assert [(one.cause, one.tokens) for one in told.losses] == [(PromptCause.NOT_EXAMINED, told.first_seen)]
