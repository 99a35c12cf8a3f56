"""The gate in vLLM's real scheduler, stepped by hand: order, exemptions, outputs, leaks. Both engine loops."""

from __future__ import annotations

import logging
import random
from importlib import import_module
from typing import Any

import pytest

from cachefleet_worker.plugin.gate.rules import FIELD
from cachefleet_worker.plugin.gate.scheduler_hooks import NONE, hook_of
from tests.worker.plugin.stepping import ids, stepped

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

Engine = Any
BLOCK = 32
REFUSED = "cache_threshold"


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def engine(*, asynchronous: bool) -> Engine:
    return stepped(asynchronous=asynchronous)


def own(threshold: float, **more: Any) -> dict[str, Any]:
    return {"extra_args": {FIELD: threshold}, **more}


def run(engine: Engine, prompt: list[int], **more: Any) -> Any:
    name = engine.submit(prompt, **more)
    engine.run()
    return engine.answers[name]


@pytest.mark.requirement("B8")
def test_the_four_requests_of_the_proposal(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    engine.policy(threshold=0.8)
    base = ids(1, 119)
    with caplog.at_level(logging.INFO, "vllm.cachefleet"):
        assert run(engine, base, **own(0)).reason == "length"
        second = run(engine, base[:96] + ids(2, 257), **own(0.33))
        assert run(engine, base[:96] + ids(3, 91), **own(0.33)).reason == "length"
        fourth = run(engine, base[:96] + ids(4, 138))
    assert (second.reason, second.tokens, second.stop_reason) == (REFUSED, [], REFUSED)
    assert second.details == {"hit_tokens": 96, "prompt_tokens": 353, "threshold": 0.33, "preempted": 0}
    assert (fourth.reason, fourth.details["threshold"]) == (REFUSED, 0.8)
    said = [record.getMessage() for record in caplog.records if "rejected" in record.getMessage()]
    assert said[0].endswith("rejected: cache hit rate 0.27 < threshold 0.33 (request)")
    assert said[1].endswith("rejected: cache hit rate 0.41 < threshold 0.80 (global)")
    assert [line.startswith("Request cmpl-") for line in said] == [True, True]
    assert engine.state.counts == {"rejected": 2, "rejected_request": 1, "rejected_global": 1}
    engine.check_idle()


@pytest.mark.requirement("B5")
def test_equality_passes(engine: Engine) -> None:
    base = ids(1, 16 * BLOCK)
    run(engine, base[: 4 * BLOCK])
    assert run(engine, base, **own(0.2500001)).reason == REFUSED
    assert run(engine, base, **own(0.25)).reason == "length"
    engine.check_idle()


@pytest.mark.requirement("A22", "B4")
def test_a_fully_cached_prompt_is_no_full_hit(engine: Engine) -> None:
    prompt = ids(1, 10 * BLOCK)
    run(engine, prompt)
    assert run(engine, prompt, **own(1.0)).details["hit_tokens"] == 9 * BLOCK
    assert run(engine, prompt, **own(0.9)).reason == "length"
    assert run(engine, ids(2, BLOCK), **own(0.001)).reason == REFUSED


def test_off_by_default_and_changed_live(engine: Engine) -> None:
    assert run(engine, ids(1, 100)).reason == "length"
    engine.policy(threshold=0.5)
    assert run(engine, ids(2, 100)).reason == REFUSED
    engine.policy(threshold=0.0)
    assert run(engine, ids(3, 100)).reason == "length"
    engine.check_idle()


def test_a_refusal_is_answered_by_the_step_that_makes_it(engine: Engine) -> None:
    name = engine.submit(ids(1, 100), **own(0.5))
    for _ in range(engine.depth):
        assert not engine.answers[name].reason
        assert engine.step()
    assert engine.answers[name].reason == REFUSED
    assert not engine.admitted
    engine.run()
    engine.check_idle()


def test_refusals_go_to_the_api_server_that_waits(engine: Engine) -> None:
    names = [engine.submit(ids(at, 100), client=at % 3, **own(0.5 * (at % 2))) for at in range(12)]
    engine.run()
    assert [engine.answers[name].client for name in names] == [at % 3 for at in range(12)]
    assert [engine.answers[name].reason for name in names] == ["length", REFUSED] * 6
    engine.check_idle()


def test_blocks_of_an_earlier_request_in_the_same_step_count(engine: Engine) -> None:
    prompt = ids(1, 3 * BLOCK + 5)
    first, second = engine.submit(prompt, **own(0)), engine.submit(prompt, **own(0.33))
    engine.step()
    assert [one.name for one in engine.admitted] == [first, second]
    engine.run()
    assert engine.answers[second].reason == "length"


@pytest.mark.requirement("B9")
def test_a_request_that_must_wait_is_judged_when_its_turn_comes(*, asynchronous: bool) -> None:
    engine = stepped(asynchronous=asynchronous, seqs=1)
    prompt = ids(1, 3 * BLOCK + 5)
    engine.submit(prompt, **own(0))
    second, third = engine.submit(prompt, **own(0.33)), engine.submit(ids(2, 100), **own(0.33))
    engine.run()
    assert engine.answers[second].reason == "length"
    assert engine.answers[third].reason == REFUSED
    engine.check_idle()


@pytest.mark.requirement("B22")
def test_a_refusal_does_not_disturb_the_batch(engine: Engine) -> None:
    running = [engine.submit(ids(at, 200), tokens=50) for at in range(3)]
    engine.step()
    refused = [engine.submit(ids(10 + at, 300), **own(0.5)) for at in range(5)]
    late = engine.submit(ids(20, 90), tokens=3)
    engine.run()
    assert [len(engine.answers[name].tokens) for name in [*running, late]] == [50, 50, 50, 3]
    assert {engine.answers[name].reason for name in refused} == {REFUSED}
    engine.check_idle()


def test_running_chunks_are_not_judged_again(engine: Engine) -> None:
    run(engine, ids(1, 256))
    assert run(engine, ids(1, 256) + ids(2, 700), **own(0.2)).reason == "length"
    assert len([one for one in engine.admitted if one.needed == 956]) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"extra_args": {FIELD: 0.9, "kv_transfer_params": {"do_remote_decode": True}}},
        {"extra_args": {FIELD: "0.9"}},
        {"extra_args": {FIELD: 1.1}},
        {"name": "resp_1", "extra_args": {FIELD: 0.9}},
        {"name": "chatcmpl-1-ab-beam-0", "extra_args": {FIELD: 0.9}},
        {"resumable": True, "extra_args": {FIELD: 0.9}},
    ],
    ids=["prefill attempt", "text", "out of range", "responses", "beam search", "session"],
)
def test_exempt_requests_run_cold(engine: Engine, arguments: dict[str, Any]) -> None:
    name = engine.submit(ids(1, 100), **arguments)
    engine.step()
    assert [one.name for one in engine.admitted] == [name]


@pytest.mark.requirement("B20")
def test_a_prefill_attempt_is_exempt_from_the_default_too(engine: Engine) -> None:
    engine.policy(threshold=0.9)
    attempt = {"kv_transfer_params": {"do_remote_decode": True}}
    assert run(engine, ids(1, 100), extra_args=attempt).reason == "length"


def test_prompt_log_probabilities_are_never_cached_so_not_gated(engine: Engine) -> None:
    assert run(engine, ids(1, 100), prompt_logprobs=1, **own(0.9)).reason == "length"


@pytest.mark.requirement("B20")
def test_with_prefix_caching_off_no_threshold_counts(*, asynchronous: bool) -> None:
    engine = stepped(asynchronous=asynchronous, caching=False)
    engine.policy(threshold=1.0)
    assert run(engine, ids(1, 100), **own(1.0)).reason == "length"
    assert run(engine, ids(1, 100)).reason == "length"
    engine.check_idle()


def test_by_priority_too(*, asynchronous: bool) -> None:
    engine = stepped(asynchronous=asynchronous, priority=True, seqs=2)
    low = [engine.submit(ids(at, 100), priority=5, **own(0.5 * (at % 2))) for at in range(6)]
    high = engine.submit(ids(9, 100), priority=1, **own(0.5))
    engine.run()
    assert [engine.answers[name].reason for name in low] == ["length", REFUSED] * 3
    assert engine.answers[high].reason == REFUSED
    engine.check_idle()


# A connector


@pytest.fixture
def connected(*, asynchronous: bool) -> Engine:
    engine = stepped(asynchronous=asynchronous, connector=("tests.worker.plugin.stub_connector", "StubConnector"))
    engine.stub = import_module("tests.worker.plugin.stub_connector").StubConnector
    engine.stub.finished.clear()
    engine.stub.asked.clear()
    return engine


def claim(tokens: int | None, threshold: float, **more: Any) -> dict[str, Any]:
    return {"extra_args": {FIELD: threshold, "kv_transfer_params": {"claim": tokens, **more}}}


@pytest.mark.requirement("B4")
def test_what_a_connector_gives_counts_beside_the_local_hit(connected: Engine) -> None:
    prompt = ids(1, 10 * BLOCK)
    run(connected, prompt[: 2 * BLOCK])
    refused = run(connected, prompt, **claim(2 * BLOCK, 0.41))
    assert (refused.reason, refused.details["hit_tokens"]) == (REFUSED, 4 * BLOCK)
    assert run(connected, prompt, **claim(2 * BLOCK, 0.4)).reason == "length"
    connected.check_idle()


def test_a_connector_hears_of_a_refusal_and_has_no_blocks_to_free(connected: Engine) -> None:
    name = connected.submit(ids(1, 100), **claim(0, 0.5))
    connected.run()
    assert connected.stub.finished[name] == ("FINISHED_CACHE_THRESHOLD", 0)


def test_a_load_that_takes_time_is_judged_once_before_it(connected: Engine) -> None:
    passed = connected.submit(ids(1, 320), **claim(160, 0.5, asynchronous=True))
    refused = connected.submit(ids(2, 320), **claim(128, 0.5, asynchronous=True))
    connected.run()
    assert connected.answers[passed].reason == "length"
    assert connected.answers[refused].reason == REFUSED
    connected.check_idle()


def test_one_whose_load_is_done_is_not_judged_again(connected: Engine) -> None:
    connected.policy(threshold=0.5)
    name = connected.submit(ids(1, 320), extra_args={"kv_transfer_params": {"claim": 160, "asynchronous": True}})
    connected.step()
    connected.policy(threshold=0.9)
    connected.run()
    assert connected.answers[name].reason == "length"
    connected.check_idle()


def test_a_connector_that_does_not_know_yet_is_waited_for(connected: Engine) -> None:
    name = connected.submit(ids(1, 100), **claim(None, 0.5))
    for _ in range(5):
        connected.step()
    assert not connected.answers[name].reason
    connected.abort(name)
    connected.run()
    connected.check_idle()


# Faults


@pytest.mark.parametrize("part", ["_wants", "_judge"])
def test_a_fault_switches_the_gate_off_and_the_request_runs(engine: Engine, part: str) -> None:
    setattr(engine.scheduler.cachefleet_admission, part, None)
    assert run(engine, ids(1, 100), **own(0.5)).reason == "length"
    assert run(engine, ids(2, 100), **own(0.5)).reason == "length"
    assert engine.state.capabilities.mode("gate") == "off"
    assert engine.state.capabilities.mode("preemption") == "in_loop"
    assert engine.state.faults.counts == {"gate": 1}


def test_a_refused_request_is_answered_also_where_freeing_it_fails(connected: Engine) -> None:
    def broken(*_: Any) -> None:
        raise OSError("gone")

    connected.scheduler.connector.request_finished = broken
    name = connected.submit(ids(1, 100), **own(0.5))
    for _ in range(3):
        connected.step()
    assert connected.answers[name].reason == REFUSED
    assert connected.state.faults.counts == {"gate": 1}


@pytest.mark.parametrize(("off", "other"), [("gate", "preemption"), ("preemption", "gate")])
def test_each_is_switched_off_alone(monkeypatch: pytest.MonkeyPatch, off: str, other: str) -> None:
    monkeypatch.setenv("CACHEFLEET_PLUGIN_OFF", off)
    capabilities = stepped().state.capabilities
    assert capabilities.mode(off) == "off"
    assert capabilities.mode(other) == "in_loop"


def test_switched_off_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEFLEET_PLUGIN_OFF", "gate,preemption")
    engine = stepped()
    assert run(engine, ids(1, 100), **own(0.5)).reason == "length"
    assert engine.state.capabilities.mode("gate") == engine.state.capabilities.mode("preemption") == "off"


def test_a_hook_that_is_not_called_is_noticed_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = import_module("cachefleet_worker.plugin.scheduler")
    monkeypatch.setattr(scheduler, "hooked", lambda base, _: base)
    scheduler._fleet_class.cache_clear()
    try:
        engine = stepped()
    finally:
        scheduler._fleet_class.cache_clear()
    found = {one.feature: one for one in engine.state.capabilities.document()}
    assert (found["gate"].mode, found["gate"].reason) == ("off", "self-test: the hook was not asked")
    assert found["preemption"].mode == "off"
    assert run(engine, ids(1, 100), **own(0.5)).reason == "length"
    engine.check_idle()


def test_a_scheduler_without_a_known_hook_has_none() -> None:
    class Other:
        def schedule(self) -> None:
            """Calls nothing that could be a hook."""

    assert hook_of(Other) == NONE


# All at once


@pytest.mark.parametrize("seed", range(3))
def test_mixed_requests_leave_nothing_behind(seed: int, *, asynchronous: bool) -> None:
    engine = stepped(asynchronous=asynchronous, blocks=40, batched=128)
    chance = random.Random(seed)
    names: list[str] = []
    for _ in range(700):
        if chance.random() < 0.02:
            engine.policy(threshold=chance.choice([0, 0, 0.2, 0.6]), reject_below=chance.choice([0, 0.3, 0.8]))
        prompt = ids(chance.randrange(6), chance.choice([1, 31, 32, 33, 96, 97, 200]))
        prompt += ids(50 + chance.randrange(40), chance.randrange(0, 60))
        mark = chance.choice(
            [None, {}, {FIELD: chance.choice([0, 0.2, 0.5, 0.9, 1, "x"])}, {"cachefleet_resumable": 1}]
        )
        names.append(engine.submit(prompt, extra_args=mark, tokens=chance.randrange(1, 60), client=chance.randrange(3)))
        if chance.random() < 0.1:
            engine.abort(chance.choice(names[-20:]))
        for _ in range(chance.randrange(6)):
            engine.step()
    engine.run()
    engine.check_idle()
    reasons = {answer.reason for answer in engine.answers.values()}
    assert reasons == {"length", REFUSED, "abort"}


@pytest.mark.requirement("B22")
def test_two_hundred_refusals_in_a_row(engine: Engine) -> None:
    for at in range(200):
        assert run(engine, ids(at, 300), **own(0.5)).reason == REFUSED
    engine.check_idle()
    assert engine.pool.num_gpu_blocks - 1 == engine.free
    assert run(engine, ids(1, 300)).reason == "length"
