"""Where the time of requests goes in a simulated fleet: second by second, by what was computed meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean
from typing import Final

from cachefleet_controlplane.simulation.simulated_scheduler import Generation, Step

WORST_PERCENT: Final = 1
LEAST: Final = 5
"""Requests whose parts are averaged at least, however few there are in all."""


class Part(StrEnum):
    """What a request waited for, or what its worker computed in a step that it took part in."""

    GATEWAY = "waits at the gateway"
    STEP = "waits for a step that was under way when it was sent"
    BEHIND = "waits in the engine behind other prompts"
    OWN = "its own prompt"
    RECOMPUTED = "of its own prompt, what was predicted to be cached"
    NOISY = "the noisy tenant's prompts in its steps"
    OTHERS = "quiet tenants' prompts in its steps"
    TOKENS = "tokens of answers in its steps"


Parts = dict[Part, float]
"""In seconds."""


@dataclass(slots=True)
class RequestTime:
    """The parts of one request until its first token, and until its answer's end."""

    first: Parts = field(default_factory=lambda: defaultdict(float))
    answer: Parts = field(default_factory=lambda: defaultdict(float))

    def add(self, part: Part, seconds: float, *, before_first: bool) -> None:
        if before_first:
            self.first[part] += seconds
        self.answer[part] += seconds


@dataclass(frozen=True, slots=True)
class Underway:
    """A request in an engine: when it was sent there, its tokens predicted to be cached, and who asked."""

    time: RequestTime
    sent: float
    predicted: int
    noisy: bool


class StepTimes:
    """Accounts for the steps of all workers; ``rate`` is of prefilled tokens a second."""

    def __init__(self, rate: float, inter_token_seconds: float) -> None:
        self._rate = rate
        self._inter_token = inter_token_seconds

    def ended(self, step: Step, underway: Mapping[Generation, Underway], *, began: float, now: float) -> None:
        """A worker's step is over, before its requests are given their tokens; ``underway`` are all that it has."""
        prompts = {generation: count for generation, count in step.work if _prefill(generation, count)}
        joined = {generation for generation, _ in step.work}
        noisy = sum(count for generation, count in prompts.items() if underway[generation].noisy)
        for generation, one in underway.items():
            first = generation.said == 0
            if generation not in joined:
                part = Part.STEP if one.sent >= began else Part.BEHIND
                one.time.add(part, now - max(began, one.sent), before_first=first)
                continue
            own = prompts.get(generation, 0)
            by_noisy = noisy - own * one.noisy
            self._joined(one, own, by_noisy, step.prefill_tokens - own - by_noisy, first=first)
            one.time.add(Part.TOKENS, self._inter_token * bool(step.decoding), before_first=first)

    def _joined(self, one: Underway, own: int, noisy: int, others: int, *, first: bool) -> None:
        for part, tokens in ((Part.OWN, own), (Part.NOISY, noisy), (Part.OTHERS, others)):
            one.time.add(part, tokens / self._rate, before_first=first)

    def admitted(self, one: Underway, cached: int) -> None:
        """Its first token has come: so many of its tokens were cached, which may be fewer than was predicted."""
        missed = max(0, one.predicted - cached) / self._rate
        one.time.first[Part.RECOMPUTED] = one.time.answer[Part.RECOMPUTED] = missed


def _prefill(generation: Generation, count: int) -> bool:
    """Whether it was of the prompt, once the step has counted it."""
    return not (count == 1 and generation.computed - count >= generation.prompt_tokens)


def slowest(seconds: Mapping[int, float], numbers: Sequence[int]) -> list[int]:
    """The slowest hundredth of some requests, at least LEAST."""
    most = max(LEAST, -(-len(numbers) * WORST_PERCENT // 100))
    return sorted(numbers, key=lambda number: seconds[number], reverse=True)[:most]


def mean_parts(parts: Sequence[Parts]) -> Parts:
    """The mean of each part, in seconds; RECOMPUTED is a share of OWN, all others add up to the whole."""
    return {part: fmean(one.get(part, 0.0) for one in parts) for part in Part}
