"""The demo's picture: hit ratio and time to first token over time, under both policies, as SVG (pure)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from cachefleet_local.demo.report import Answer, Phase

LEAST: Final = 1e-9
"""What is less has no scale of its own: the smallest floats have too few digits for one."""
WINDOW: Final = 10
"""Answers that each point is taken over."""
_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 16, 44, 36
_TICKS: Final = 4
_STYLE: Final = """
svg { background: #fff; font: 13px system-ui, sans-serif; fill: #222 }
.grid { stroke: #ddd } .roundRobin { stroke: #b45309; stroke-dasharray: 6 4 } .cacheAware { stroke: #1d6fb8 }
path { fill: none; stroke-width: 2.5; stroke-linejoin: round } .title { font-weight: 600 }
@media (prefers-color-scheme: dark) {
  svg { background: #16181d; fill: #ddd } .grid { stroke: #3a3d45 }
  .roundRobin { stroke: #f0a04b } .cacheAware { stroke: #6cb6ff }
}
"""


@dataclass(frozen=True, slots=True)
class _Panel:
    """One chart: what it shows of some answers, up to which value, and how values are written."""

    title: str
    value: Callable[[Sequence[Answer]], float]
    most: float
    written: Callable[[float], str]


def figure(phases: Sequence[Phase]) -> str:
    """Return the picture of all phases, each from its own start."""
    seconds = max((answer.at_seconds for phase in phases for answer in phase.served), default=0.0) or 1.0
    slowest = max((value for phase in phases for _, value in points(phase, _first_token)), default=0.0)
    panels = (
        _Panel("Prompt tokens served from cache", hit_ratio, 1.0, lambda ratio: f"{ratio:.0%}"),
        _Panel("Time to first token", _first_token, ceiling(slowest), lambda taken: f"{1000 * taken:.0f} ms"),
    )
    charts = "".join(_chart(panel, phases, seconds, top=place * _HEIGHT) for place, panel in enumerate(panels))
    height = len(panels) * _HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
        f' role="img"><title>{escape(_description(phases))}</title><style>{_STYLE}</style>{charts}</svg>\n'
    )


def points(phase: Phase, value: Callable[[Sequence[Answer]], float]) -> Iterator[tuple[float, float]]:
    """Yield the second and the value of the last WINDOW answers, for each answer in the order they were sent."""
    served = sorted(phase.served, key=lambda answer: answer.at_seconds)
    for number, answer in enumerate(served):
        yield answer.at_seconds, value(served[max(0, number + 1 - WINDOW) : number + 1])


def hit_ratio(answers: Sequence[Answer]) -> float:
    """Return the share of prompt tokens that were cached."""
    prompts = sum(answer.prompt_tokens for answer in answers)
    return sum(answer.cached_tokens for answer in answers) / prompts if prompts else 0.0


def ceiling(value: float) -> float:
    """Return the next of 1, 2, 4, 5 or 10 times a power of ten, so that ticks are round; 1 for next to nothing."""
    if value < LEAST:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 10) if value <= step * power * (1 + 1e-9))


def _first_token(answers: Sequence[Answer]) -> float:
    return median(answer.ttft_seconds for answer in answers)


def _description(phases: Sequence[Phase]) -> str:
    summaries = [f"{phase.policy}: {phase.hit_ratio:.0%} cached, {1000 * phase.ttft(50):.0f} ms" for phase in phases]
    return f"Hit ratio and median time to first token over time. {'; '.join(summaries)}"


def _chart(panel: _Panel, phases: Sequence[Phase], seconds: float, *, top: int) -> str:
    def across(second: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * second / seconds

    def down(value: float) -> float:
        return top + _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(1.0, value / panel.most)

    lines = "".join(_line(phase, panel, across, down) for phase in phases)
    title = _text(_LEFT, top + 20, panel.title, "title")
    return f"{title}{_legend(phases, top)}{_grid(panel, seconds, across, down)}{lines}"


def _line(phase: Phase, panel: _Panel, across: Callable[[float], float], down: Callable[[float], float]) -> str:
    steps = [f"{across(second):.1f},{down(value):.1f}" for second, value in points(phase, panel.value)]
    return f'<path class={quoteattr(phase.policy)} d="M{" L".join(steps)}"/>' if steps else ""


def _grid(panel: _Panel, seconds: float, across: Callable[[float], float], down: Callable[[float], float]) -> str:
    parts = []
    for tick in range(_TICKS + 1):
        value, second = panel.most * tick / _TICKS, seconds * tick / _TICKS
        y = down(value)
        parts += [
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
            _text(_LEFT - 8, y + 4, panel.written(value), anchor="end"),
            _text(across(second), down(0) + 20, f"{second:.0f} s", anchor="middle"),
        ]
    return "".join(parts)


def _legend(phases: Sequence[Phase], top: int) -> str:
    parts = []
    for place, phase in enumerate(phases):
        x, y = _WIDTH - _RIGHT - 130 * (len(phases) - place), top + 16
        parts += [f'<path class={quoteattr(phase.policy)} d="M{x},{y} h28"/>', _text(x + 34, y + 4, phase.policy)]
    return "".join(parts)


def _text(x: float, y: float, words: str, kind: str = "", *, anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(words)}</text>'
