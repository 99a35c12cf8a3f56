"""Trace of chat requests that the demo's agents send; the same seed gives the same trace (pure).

A few kinds of agent, each with a long system prompt that its conversations share; each conversation goes turn by turn
(an instruction or a tool's result, then the agent's step) and now and then takes back its last turns and goes on
differently, as agents do after a failed attempt. Conversations take turns at random, so that which one is next says
nothing about which worker is.

It is a replay: the agent's steps are part of the trace, whatever the model answers, so that both policies are given
exactly the same prompts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cachefleet_local.models.words import WORDS

Message = dict[str, str]
_SENTENCE_WORDS: Final = (6, 14)


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the trace is; lengths are in words, a little more than that in tokens."""

    seed: int = 7
    agents: int = 2
    conversations: int = 12
    turns: int = 10
    """Requests of each conversation."""
    system_words: int = 550
    input_words: int = 130
    step_words: int = 30
    backtrack: float = 0.15
    """Chance that a turn first takes back one or two before it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One chat request of the trace."""

    number: int
    conversation: int
    turn: int
    """Position in its conversation, from 0; one conversation's requests are sent one after another."""
    backtracked: bool
    messages: tuple[Message, ...]


def workload(shape: Shape) -> list[Request]:
    """The whole trace in sending order. ValueError for a shape without work."""
    if min(shape.agents, shape.conversations, shape.turns) < 1:
        raise ValueError("a workload needs at least one agent, one conversation and one turn")
    chance = random.Random(shape.seed)  # noqa: S311 - wants a seed
    systems = [_text(chance, shape.system_words) for _ in range(shape.agents)]
    talks = [list(_talk(chance, shape, systems[i % shape.agents])) for i in range(shape.conversations)]
    order = [i for i in range(shape.conversations) for _ in range(shape.turns)]
    chance.shuffle(order)
    return list(_interleaved(talks, order))


def _interleaved(talks: list[list[tuple[bool, tuple[Message, ...]]]], order: list[int]) -> Iterator[Request]:
    done = [0] * len(talks)
    for number, conversation in enumerate(order):
        turn = done[conversation]
        backtracked, messages = talks[conversation][turn]
        yield Request(number, conversation, turn, backtracked, messages)
        done[conversation] += 1


def _talk(chance: random.Random, shape: Shape, system: str) -> Iterator[tuple[bool, tuple[Message, ...]]]:
    messages: list[Message] = [{"role": "system", "content": system}]
    for turn in range(shape.turns):
        backtracked = turn > 1 and chance.random() < shape.backtrack
        if backtracked:
            back = min(chance.choice((1, 2)), turn - 1)
            del messages[len(messages) - 2 * back :]
        messages.append({"role": "user", "content": _text(chance, shape.input_words)})
        yield backtracked, tuple(messages)
        messages.append({"role": "assistant", "content": _text(chance, shape.step_words)})


def _text(chance: random.Random, words: int) -> str:
    sentences: list[str] = []
    while words > 0:
        length = min(words, chance.randint(*_SENTENCE_WORDS))
        sentences.append(" ".join(chance.choices(WORDS, k=length)).capitalize() + ".")
        words -= length
    return " ".join(sentences)
