"""The demo's picture."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_local.demo.figure import WINDOW, ceiling, figure, hit_ratio, points
from cachefleet_local.demo.report import Answer, EngineCounts, Phase

SVG = "{http://www.w3.org/2000/svg}"


def phase(policy: str, answers: Sequence[Answer]) -> Phase:
    return Phase(policy, answers, {}, EngineCounts(0, 0), 1.0)


def answer(at: float, cached: int, ttft: float = 0.01) -> Answer:
    return Answer(0, prompt_tokens=100, cached_tokens=cached, ttft_seconds=ttft, at_seconds=at)


def test_each_point_is_of_the_last_answers_in_the_order_they_were_sent() -> None:
    answers = [answer(float(second), 100 if second >= WINDOW else 0) for second in reversed(range(2 * WINDOW))]
    ratios = dict(points(phase("cacheAware", answers), hit_ratio))
    assert [ratios[second] for second in (0, WINDOW - 1, WINDOW, 2 * WINDOW - 1)] == [0, 0, 1 / WINDOW, 1]


def test_it_has_two_charts_with_a_line_for_each_policy() -> None:
    both = [phase("roundRobin", [answer(0, 0), answer(5, 10)]), phase("cacheAware", [answer(0, 0), answer(4, 90)])]
    picture = ET.fromstring(figure(both))  # noqa: S314 - our own
    paths = [path for path in picture.iter(f"{SVG}path") if "h28" not in path.attrib["d"]]
    assert [path.attrib["class"] for path in paths] == ["roundRobin", "cacheAware"] * 2
    words = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"Prompt tokens served from cache", "Time to first token", "100%", "0 ms", "5 s"} <= set(words)
    assert "cacheAware: 45% cached, 10 ms" in (picture.findtext(f"{SVG}title") or "")


@pytest.mark.parametrize(
    ("value", "most"), [(0, 1), (5e-324, 1), (0.03, 0.04), (0.1, 0.1), (0.011, 0.02), (3, 4), (7, 10)]
)
def test_scales_end_at_round_values(value: float, most: float) -> None:
    assert ceiling(value) == pytest.approx(most)


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 100), st.floats(0, 60)), max_size=30),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=9),
)
def test_every_result_has_a_picture(answers: list[tuple[float, int, float]], policy: str) -> None:
    ET.fromstring(figure([phase(policy, [answer(*each) for each in answers]), phase("b", [])]))  # noqa: S314
