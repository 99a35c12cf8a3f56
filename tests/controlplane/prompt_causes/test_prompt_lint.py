"""What of a prompt will not be cached: told by its form, by what it changed, and to nobody who need not change it."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.prompt_causes.prompt_cause import LEAST_TOKENS, PromptCause
from cachefleet_controlplane.prompt_causes.prompt_lint import (
    BYTES_A_TOKEN,
    LAST_BLOCK,
    LintFinding,
    LintReport,
    LintSeverity,
    PromptSize,
    lint,
    lint_alone,
)
from cachefleet_controlplane.prompt_causes.prompt_shapes import PromptShapes
from tests.controlplane.prompt_causes.conversations import INJECTED, conversation, with_time, words
from tests.controlplane.prompt_causes.prompts import Body

RULES = words(random.Random(1), 120)
ASKED = {"role": "user", "content": "When does it go?"}


def chat(system: str, **more: Any) -> Body:
    return {"model": "m", "messages": [{"role": "system", "content": system}, ASKED]} | more


def ask(body: Body, endpoint: Endpoint = Endpoint.CHAT) -> Any:
    return parse(json.dumps(body).encode(), endpoint).ask


def alone(body: Body, *, earlier: Body | None = None, endpoint: Endpoint = Endpoint.CHAT, **more: Any) -> LintReport:
    before = None if earlier is None else ask(earlier, endpoint)
    return lint_alone(ask(body, endpoint), before, **({"block_size": 16} | more))


def warned(report: LintReport) -> list[tuple[str, str, int | None]]:
    return [(one.cause, one.part, one.character) for one in report.findings if one.severity is LintSeverity.WARNING]


def test_a_time_and_an_id_in_the_system_text_are_told_with_place_and_cost() -> None:
    system = f"Now: 2026-11-27 09:05. Session 3f2504e0-4f89-11d3-9a0c-0305e82c3301. {RULES}"
    report = alone(chat(system))
    assert warned(report) == [("time", "system", len("Now: ")), ("id", "system", system.index("3f25"))]
    time, id_ = report.findings
    size = len(system) + len(ASKED["content"])
    assert (report.prompt_tokens, report.exact, report.compared) == (round(size / BYTES_A_TOKEN), False, False)
    assert (time.position, time.tokens) == (0, (report.prompt_tokens - 1) // 16 * 16)
    assert id_.position == system.index("3f25") * report.prompt_tokens // size // 16 * 16
    assert id_.position + id_.tokens == time.tokens
    assert "behind what stays the same" in time.mend


@pytest.mark.parametrize(
    "body",
    [
        chat(RULES),
        chat(f"You are gpt-4o-mini, version 3.14.2. Open Monday to Friday, 9:00 to 17:30. {RULES}"),
        chat(f"{RULES} Now: 2026-11-27 09:05."),  # at its end, where little follows
        chat("Today is 2026-11-27."),
        {"messages": [{"role": "user", "content": f"{RULES * 2} Session 47112. {RULES}"}]},
        {"messages": [{"role": "user", "content": f"My order 3f2504e0-4f89-11d3-9a0c-0305e82c3301? {RULES}"}]},
    ],
)
def test_prompts_that_stay_the_same_have_no_warning(body: Body) -> None:
    assert warned(alone(body)) == []


def test_a_date_that_may_never_change_is_a_note() -> None:
    [note] = alone(chat(f"Rules as of 2026-01-15. {RULES}")).findings
    assert (note.severity, note.cause) == (LintSeverity.NOTE, "time")


@pytest.mark.parametrize(
    ("endpoint", "body", "part"),
    [
        (Endpoint.MESSAGES, {"system": f"Today is Friday. {RULES}", "messages": [ASKED]}, "system"),
        (Endpoint.RESPONSES, {"instructions": f"Today is Friday. {RULES}", "input": "hello"}, "system"),
        (Endpoint.RESPONSES, {"input": f"Today is Friday. {RULES}"}, "message"),
        (Endpoint.COMPLETIONS, {"prompt": f"Today is Friday. {RULES}"}, "message"),
        (
            Endpoint.CHAT,
            chat(RULES, tools=[{"name": "t", "description": f"As of today, 2026-11-27. {RULES}"}]),
            "tools",
        ),
    ],
)
def test_each_api_is_read(endpoint: Endpoint, body: Body, part: str) -> None:
    assert [one[:2] for one in warned(alone({"model": "m"} | body, endpoint=endpoint))] == [("time", part)]


def test_media_parameters_and_salts_are_notes() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:" + "x" * 4000}}
    said = {"role": "user", "content": [image, {"type": "text", "text": RULES}]}
    report = alone({"messages": [said], "reasoning_effort": "high"}, salted=True)
    assert warned(report) == []
    assert {one.cause for one in report.findings} == {"image", "parameters", "salt"}
    assert report.prompt_tokens == round(len(RULES) / BYTES_A_TOKEN), "an image's bytes are no tokens"
    assert [one.position for one in report.findings if one.cause == "image"] == [0]


def test_what_has_no_parts_is_told_so() -> None:
    [one] = alone({"prompt": [1] * 5000}, endpoint=Endpoint.COMPLETIONS).findings
    assert (one.severity, one.cause) == (LintSeverity.NOTE, PromptCause.NOT_EXAMINED)


def compared(body: Body, earlier: Body) -> tuple[LintReport, LintFinding]:
    report = alone(body, earlier=earlier)
    [found] = [one for one in report.findings if one.compared]
    assert report.compared
    assert found.severity is LintSeverity.WARNING
    return report, found


@pytest.mark.parametrize("cause", sorted(set(INJECTED) - {PromptCause.REASONING_DROPPED}))
def test_what_an_earlier_request_had_otherwise_is_a_warning(cause: PromptCause) -> None:
    rng = random.Random(cause)
    earlier, body = INJECTED[cause](rng, conversation(rng))
    _, found = compared(body, earlier)
    assert found.cause == cause
    assert found.tokens >= LEAST_TOKENS


def test_what_an_earlier_request_has_the_same_is_no_warning() -> None:
    body = conversation(random.Random(2))
    first = [one.severity for one in alone(body).findings]
    assert first == [LintSeverity.WARNING, LintSeverity.WARNING]
    again = alone(body | {"messages": [*body["messages"], ASKED]}, earlier=body)
    assert [one.severity for one in again.findings] == [LintSeverity.NOTE, LintSeverity.NOTE]


def test_a_counted_prompt_has_exact_positions_and_an_end() -> None:
    """With block keys the place of a change is exact to the block; the end is what no engine serves."""
    shapes, body = PromptShapes(), conversation(random.Random(3), tools=0)
    before, now = with_time(body, "2026-11-27"), with_time(body, "2026-11-28")
    keys = [bytes([number]) * 8 for number in range(64)]
    shapes.keep("line", _shape(shapes, before), b"".join(keys), 1030)
    shape = _shape(shapes, now)
    relation = shapes.nearest("line", shape, b"".join([*keys[:5], *keys[40:60]]))
    report = lint(ask(now), shape, PromptSize(tokens=1030, block_size=16, exact=True), relation)
    changed, *_, end = report.findings
    assert (changed.cause, changed.position, changed.compared) == ("time", 5 * 16, True)
    assert 800 < changed.tokens <= 1024 - 80
    assert (end.cause, end.position, end.tokens) == (LAST_BLOCK, 1024, 6)


def _shape(shapes: PromptShapes, body: Body) -> Any:
    return shapes.read.shape(ask(body), "")


def test_a_report_has_nothing_of_the_text() -> None:
    mark = "zanzibar"
    body = chat(f"Now: 09:05:11. {mark} {RULES}", tools=[{"name": mark, "description": f"{mark} {RULES}"}])
    report = alone(body, earlier=chat(f"Now: 09:05:12. {mark} {RULES}"))
    assert report.findings
    assert mark not in msgspec.json.encode(report).decode() + repr(report)
    assert "09:05" not in repr(report)
