"""Preempted requests in vLLM's real scheduler with too few blocks, stepped by hand. Both engine loops."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from cachefleet_worker.plugin.gate.rules import FIELD, RESUMABLE
from tests.worker.plugin.stepping import ids, stepped

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

Engine = Any
MARK = {RESUMABLE: 1}
REFUSED = "cache_threshold"


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """16 blocks of 32 tokens; each token of a request is the next number, so that order shows."""
    engine = stepped(asynchronous=request.param, blocks=17)
    produced: dict[str, int] = {}

    def token(name: str) -> int:
        produced[name] = produced.get(name, 0) + 1
        return produced[name]

    engine.next_token = token
    return engine


def storm(engine: Engine, marks: list[dict[str, Any] | None], tokens: int = 200) -> list[Any]:
    names = [engine.submit(ids(at, 64), extra_args=mark, tokens=tokens) for at, mark in enumerate(marks)]
    engine.run()
    engine.check_idle()
    return [engine.answers[name] for name in names]


def resumed(engine: Engine) -> list[Any]:
    return [one for one in engine.admitted if one.preemptions]


def check_tokens(answers: list[Any], tokens: int = 200) -> None:
    for answer in answers:
        assert answer.tokens == list(range(1, len(answer.tokens) + 1))
        assert (answer.reason == "length") == (len(answer.tokens) == tokens)


@pytest.mark.requirement("B10")
def test_marked_victims_come_back_with_what_they_produced(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    engine.policy(reject_below=0.5)
    with caplog.at_level(logging.INFO, "vllm.cachefleet"):
        answers = storm(engine, [MARK] * 6)
    check_tokens(answers)
    back = [answer for answer in answers if answer.reason == REFUSED]
    assert back
    assert all(answer.details["preempted"] == 1 and answer.details["threshold"] == 0.5 for answer in back)
    assert all(answer.details["prompt_tokens"] == 64 and answer.stop_reason == REFUSED for answer in back)
    assert max(len(answer.tokens) for answer in back) > 0
    assert all(one.computed / one.needed >= 0.5 for one in resumed(engine))
    assert engine.state.counts["handed_back"] == len(back)
    lines = [record.getMessage() for record in caplog.records if "handed back:" in record.getMessage()]
    assert len(lines) == len(back)
    assert f"{len(back[0].tokens)} tokens produced" in "".join(lines)


def test_unmarked_victims_are_computed_again(engine: Engine) -> None:
    engine.policy(reject_below=0.5, threshold=0.0)
    answers = storm(engine, [None, {FIELD: 0}, {}, None, None, None])
    check_tokens(answers)
    assert {answer.reason for answer in answers} == {"length"}
    assert any(one.computed / one.needed < 0.5 for one in resumed(engine))


def test_recompute_hands_nothing_back(engine: Engine) -> None:
    engine.policy(preemption="Recompute", reject_below=0.5)
    answers = storm(engine, [MARK] * 6)
    assert {answer.reason for answer in answers} == {"length"}
    assert resumed(engine)


def test_without_a_policy_nothing_is_handed_back(engine: Engine) -> None:
    assert {answer.reason for answer in storm(engine, [MARK] * 6)} == {"length"}


def test_only_marked_ones_of_a_mixed_batch(engine: Engine) -> None:
    engine.policy(reject_below=0.9)
    marks = [MARK, None, {FIELD: 0.001}, None, MARK, None]
    prompts = [ids(at, 64) for at in range(6)]
    for prompt in prompts:
        engine.submit(prompt, tokens=1)
    engine.run()
    before = len(engine.admitted)
    answers = storm(engine, marks)
    check_tokens(answers)
    for answer, mark in zip(answers, marks, strict=True):
        assert mark is not None or answer.reason == "length"
    marked = {name for name, answer in engine.answers.items() if answer.reason == REFUSED}
    again = [one for one in engine.admitted[before:] if one.preemptions]
    assert all(one.computed / one.needed >= 0.9 or one.name not in marked for one in again)


def test_one_whose_blocks_survive_goes_on(engine: Engine) -> None:
    """Two requests fill the pool; when the older ends, nobody has taken the younger's blocks."""
    engine.policy(reject_below=0.5)
    first = engine.submit(ids(1, 224), extra_args=MARK, tokens=60)
    second = engine.submit(ids(2, 224), extra_args=MARK, tokens=60)
    engine.run()
    engine.check_idle()
    again = resumed(engine)
    assert [one.name for one in again] == [second]
    assert again[0].computed >= again[0].needed * 0.5
    check_tokens([engine.answers[first], engine.answers[second]], 60)
    assert engine.answers[second].reason == "length"


def test_what_a_victim_has_produced_must_survive_too(engine: Engine) -> None:
    """The older request takes the younger's blocks from their end, until less than half of all its tokens is left."""
    engine.policy(reject_below=0.5)
    first = engine.submit(ids(1, 64), tokens=400)
    second = engine.submit(ids(2, 64), extra_args=MARK, tokens=400)
    engine.run()
    engine.check_idle()
    assert engine.answers[first].reason == "length"
    back = engine.answers[second]
    assert back.reason == REFUSED
    assert 64 < back.details["hit_tokens"] < 0.5 * (64 + len(back.tokens))


def test_a_tiny_bound_hands_back_only_what_is_gone(engine: Engine) -> None:
    engine.policy(reject_below=0.001)
    answers = storm(engine, [{FIELD: 0.0, RESUMABLE: 1}] * 6)
    check_tokens(answers)
    assert all(one.computed > 0 for one in resumed(engine))


def test_the_bound_is_changed_live(engine: Engine) -> None:
    engine.policy(reject_below=0.0)
    names = [engine.submit(ids(at, 64), extra_args=MARK, tokens=200) for at in range(6)]
    while not resumed(engine):
        engine.step()
    engine.policy(reject_below=1.0)
    engine.run()
    engine.check_idle()
    assert REFUSED in {engine.answers[name].reason for name in names}


def test_a_reset_of_the_cache_while_requests_run(engine: Engine) -> None:
    """All that run are preempted; vLLM drops what is under way and would compute everything again."""
    engine.policy(reject_below=0.5)
    names = [engine.submit(ids(at, 64), extra_args=MARK, tokens=50) for at in range(2)]
    for _ in range(20):
        engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.run()
    assert {engine.answers[name].reason for name in names} == {REFUSED}
    engine.check_idle()


def hand_back_all(engine: Engine) -> int:
    handed: int = msgspec.msgpack.decode(engine.state.call("hand_back", b""))["handed_back"]
    return handed


def test_a_worker_that_goes_hands_back_all_that_is_marked(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """What is not marked runs to its end, and what comes later too."""
    engine.policy(reject_below=0.5)
    names = [engine.submit(ids(at, 64), extra_args=MARK if at % 2 else None, tokens=40) for at in range(4)]
    for _ in range(20):
        engine.step()
    with caplog.at_level(logging.INFO, "vllm.cachefleet"):
        assert (hand_back_all(engine), hand_back_all(engine)) == (2, 0)
    names.append(engine.submit(ids(7, 64), extra_args=MARK, tokens=20))
    engine.run()
    engine.check_idle()
    answers = [engine.answers[name] for name in names]
    check_tokens(answers[:-1], 40)
    assert [answer.reason for answer in answers] == ["length", REFUSED] * 2 + ["length"]
    assert [answer.stop_reason for answer in answers[1:4:2]] == [REFUSED] * 2
    assert min(len(answer.tokens) for answer in answers[1:4:2]) > 10
    assert [answer.details for answer in answers[1:4:2]] == [None, None], "gateways would take it for a gate's refusal"
    assert engine.state.counts["handed_back"] == 2
    assert sum("this worker goes" in record.getMessage() for record in caplog.records) == 2


def test_an_engine_that_has_handed_all_back_still_tells_it(engine: Engine) -> None:
    """No other request has it make a step."""
    engine.policy(reject_below=0.5)
    name = engine.submit(ids(1, 64), extra_args=MARK, tokens=60)
    for _ in range(10):
        engine.step()
    assert hand_back_all(engine) == 1
    assert engine.scheduler.has_requests()
    engine.run()
    engine.check_idle()
    check_tokens([engine.answers[name]], 60)
    assert engine.answers[name].reason == REFUSED


@pytest.mark.parametrize("policy", [{"preemption": "Recompute", "reject_below": 0.5}, None])
def test_where_nothing_is_handed_back_a_worker_that_goes_keeps_all(engine: Engine, policy: Any) -> None:
    if policy:
        engine.policy(**policy)
    name = engine.submit(ids(1, 64), extra_args=MARK, tokens=60)
    engine.step()
    assert hand_back_all(engine) == 0
    engine.run()
    assert engine.answers[name].reason == "length"


def test_a_fault_while_handing_back_lets_the_victims_go_on(engine: Engine) -> None:
    engine.policy(reject_below=0.5)
    engine.scheduler.cachefleet_admission._answer = None
    names = [engine.submit(ids(at, 64), extra_args=MARK, tokens=200) for at in range(6)]
    engine.run()
    assert {engine.answers[name].reason for name in names} == {"length"}
    assert set(engine.state.faults.counts) == {"preemption"}
    assert engine.state.capabilities.mode("preemption") == "off"
    assert engine.state.capabilities.mode("gate") == "in_loop"
