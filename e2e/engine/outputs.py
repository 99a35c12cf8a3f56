"""What an engine says to a prompt, token by token, and whether two engines say the same."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_local.models.words import WORDS
from e2e.engine.requests import CHAT, COMPLETION, Sent
from e2e.engine.side import Side

TOLERANCE: Final = 1e-3
"""Of a log-probability: batches of other sizes add floats in another order, some 1e-6 apart."""


@dataclass(frozen=True, slots=True)
class Output:
    """One answer; ``gaps`` is how far the best token was ahead of the second, in log-probability."""

    finish: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    gaps: tuple[float, ...]
    prompt_tokens: int
    cached_tokens: int

    def upto(self, count: int) -> Output:
        return Output(
            self.finish, self.tokens[:count], self.logprobs[:count], self.gaps[:count], self.prompt_tokens, -1
        )


def prompts(count: int, *, outputs: int, seed: int = 0) -> list[Sent]:
    """Chats of one to three turns and plain completions; a few share each system prompt. 100 to 450 tokens."""
    return [_prompt(number, outputs, seed) for number in range(count)]


def _prompt(number: int, outputs: int, seed: int) -> Sent:
    chance = random.Random(f"{seed} {number}")
    system = _words(random.Random(f"{seed} system {number % 7}"), 60)
    turns = [_words(chance, chance.randint(20, 110)) for _ in range(number % 3 * 2 + 1)]
    common = {"max_tokens": outputs, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    if number % 4 == 3:
        return Sent(COMPLETION, {"prompt": "\n".join([system, *turns]), "logprobs": 2, **common})
    messages = [{"role": "system", "content": system}]
    messages += [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(turns)]
    return Sent(CHAT, {"messages": messages, "logprobs": True, "top_logprobs": 2, **common})


def _words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(WORDS, k=count))


async def say(side: Side, sent: Sent, **body: Any) -> Output:
    """The whole answer to a prompt."""
    exchange = await side.send(sent.path, sent.body | body)
    assert exchange.status == 200, exchange
    choice, usage = exchange.body["choices"][0], exchange.body["usage"]
    logprobs, tops = _logprobs(choice["logprobs"])
    return Output(
        finish=choice["finish_reason"],
        tokens=tuple(choice["token_ids"]),
        logprobs=tuple(logprobs),
        gaps=tuple(max(top) - sorted(top)[-2] for top in tops),
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
    )


def _logprobs(given: dict[str, Any]) -> tuple[list[float], list[list[float]]]:
    """Of each token; and of the best at its place."""
    if "content" in given:
        content = given["content"]
        return [each["logprob"] for each in content], [[t["logprob"] for t in each["top_logprobs"]] for each in content]
    return given["token_logprobs"], [list(top.values()) for top in given["top_logprobs"]]


def same(got: Sequence[Output], expected: Sequence[Output]) -> int:
    """Assert that the answers are the same; says how many part at a near-tie.

    Where the two best tokens are within the tolerance of each other either is right, and the texts part there: such an
    answer is compared up to that token. Callers bound how many there may be.
    """
    assert len(got) == len(expected)
    return sum(_same(a, b, number) for number, (a, b) in enumerate(zip(got, expected, strict=True)))


def _same(got: Output, expected: Output, number: int) -> bool:
    shapes = [(each.finish, each.prompt_tokens, len(each.tokens)) for each in (got, expected)]
    assert shapes[0] == shapes[1], f"answer {number}"
    for place, token in enumerate(expected.tokens):
        if got.tokens[place] != token:
            gap = expected.gaps[place]
            assert gap < TOLERANCE, f"answer {number} parts at token {place}, where {gap:.4f} lay between the best two"
            return True
        apart = abs(got.logprobs[place] - expected.logprobs[place])
        assert apart <= TOLERANCE, f"answer {number}, token {place}: log-probabilities are {apart:.4f} apart"
    return False


def total(outputs: Iterable[Output]) -> int:
    """Prompt tokens that were found cached."""
    return sum(output.cached_tokens for output in outputs)
