"""The replay benchmark on made-up workloads: what must hold of any run, and that an unsound one is no result."""

from collections import Counter
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import pytest

from bench import replay, replay_sensitivity
from bench.replay_policies import MEAN_LOAD, BoundedHashPolicy, NeverPaid, ideal_hits
from bench.replay_result import PolicyResult
from bench.replay_run import POLICIES, Replay
from bench.replay_work import (
    BLOCK,
    Request,
    block_tokens,
    blocks,
    chains,
    mooncake,
    scaled,
    sessions,
    stampede,
    synthetic,
)
from bench.replay_worker import SimWorker
from bench.rows import percentile
from cachefleet_controlplane.routing.worth import UNLEARNT
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.run_result import SimulationError
from cachefleet_controlplane.workers.worth.paid_waiting import PaidWaiting
from cachefleet_core.native import lacking

SETUP = Setup(workers=3, blocks=120, prefill_tokens_per_second=2000.0, model_len=1024)
WORK = synthetic(conversations=10, turns=6)
RECORD = {"input_length": 6758, "output_length": 500, "hash_ids": list(range(14))}
NAMES = ("input_length", "output_length")


@pytest.fixture(scope="module")
def runs() -> dict[str, PolicyResult]:
    return {policy: Replay(WORK, SETUP, policy).run() for policy in POLICIES}


# Workloads.


def test_a_block_of_the_trace_becomes_one_of_ours() -> None:
    request = scaled(0, 1.5, RECORD, block=512, names=NAMES)
    assert astuple(request) == (0, 1.5, tuple(range(13)), 4, 16)
    assert len(request.tokens()) == request.length == 13 * BLOCK + 4


@pytest.mark.parametrize(("length", "full", "tail"), [(512, 1, 0), (1, 0, 1), (1023, 1, 15), (513, 1, 1)])
def test_a_tail_never_is_a_block(length: int, full: int, tail: int) -> None:
    request = scaled(0, 0.0, {**RECORD, "input_length": length, "output_length": 0}, block=512, names=NAMES)
    assert (len(request.blocks), request.tail, request.outputs) == (full, tail, 1)


def test_equal_numbers_are_equal_tokens_and_others_are_not() -> None:
    prompts = [Request(number, 0.0, (7, number + 8), 3, 1).tokens() for number in range(2)]
    assert prompts[0][:BLOCK] == prompts[1][:BLOCK]
    assert prompts[0][BLOCK : 2 * BLOCK] != prompts[1][BLOCK : 2 * BLOCK]
    assert prompts[0][-3:] != prompts[1][-3:]
    assert all(0 <= token < 1 << 16 for token in block_tokens(7))


def test_a_chain_commits_to_all_before_it() -> None:
    a, b = chains([Request(0, 0.0, (1, 2, 3), 1, 1), Request(1, 0.0, (1, 4, 3), 1, 1)])
    assert a[0] == b[0]
    assert a[2] != b[2]


# Policies.


def test_the_ideal_keeps_what_was_used_last() -> None:
    one, two = (Request(number, 0.0, (10 * number, 10 * number + 1), 1, 1) for number in range(2))
    assert ideal_hits([one, one], 4) == 2
    assert ideal_hits([one, two, one], 4) == 2
    assert ideal_hits([one, two, one], 3) == 1  # the tail of the first went before its head
    assert ideal_hits([one, two, one], 2) == 0


def test_the_ideal_computes_the_last_token_of_a_prompt() -> None:
    whole = Request(0, 0.0, (1, 2), 0, 1)
    assert ideal_hits([whole, whole], 8) == 1


def test_the_bounded_hash_goes_by_the_beginning_within_its_bound() -> None:
    policy = BoundedHashPolicy(["a", "b", "c"])
    first = policy.place(Request(0, 0.0, (1, 2, 3), 1, 1), [])
    assert first is not None
    first.under.finish()
    under: Counter[str] = Counter()
    for number in range(60):
        placed = policy.place(Request(number, 0.0, (1, 2, number), 1, 1), [])
        assert placed is not None
        assert number or placed.worker == first.worker
        under[placed.worker] += 1
        assert max(under.values()) <= MEAN_LOAD * under.total() / 3 + 1
    assert len(under) == 3


# Runs.


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_answered_and_counted_once(runs: dict[str, PolicyResult], policy: str) -> None:
    run = runs[policy]
    assert sum(run.served) == len(run.first_tokens) == len(run.queues) == len(WORK)
    assert run.blocks == blocks(WORK)
    computed = sum(request.length for request in WORK) - BLOCK * run.hit_blocks
    assert sum(run.computed) == computed
    assert min(run.first_tokens) > 0
    assert min(run.queues) >= 0


def test_caches_help_where_they_are_known(runs: dict[str, PolicyResult]) -> None:
    ideal = ideal_hits(WORK, SETUP.workers * SETUP.blocks)
    assert runs["random"].hit_blocks < runs["cacheAware"].hit_blocks <= ideal


def test_a_run_is_the_same_each_time(runs: dict[str, PolicyResult]) -> None:
    assert Replay(WORK, SETUP, "cacheAware").run() == runs["cacheAware"]


@pytest.mark.skipif(bool(lacking()), reason=f"native code: {lacking()}")
def test_both_codes_decide_alike() -> None:
    assert Replay(WORK, SETUP, "cacheAware", code="python").run() == Replay(WORK, SETUP, "cacheAware").run()


def test_a_prefix_that_all_ask_for_at_once_is_spread() -> None:
    """On full caches: whoever holds it is not waited for while others idle, as would be where waiting pays nothing."""
    setup = replace(replay.STAMPEDE, workers=4, blocks=600, prefill_tokens_per_second=2000.0, batched_tokens=512)
    work = stampede(prefix=128, rate=50.0, seconds=30.0, cold=5.0, before=70.0)
    hot = [request.number for request in work if request.blocks[0] == 0]

    def late(policy: str, paid: PaidWaiting) -> float:
        replayed = Replay(work, setup, policy)
        replayed.pay_into(paid)
        run = replayed.run()
        return percentile([run.first_token[number] for number in hot], 99)

    even = late("roundRobin", NeverPaid())
    assert late("cacheAware", PaidWaiting()) <= 1.2 * even
    assert late("cacheAware", NeverPaid()) > 1.2 * even


def test_the_plain_rule_learns_nothing() -> None:
    run = Replay(WORK, SETUP, "plain")
    run.run()
    assert {worker.worth for worker in run._registry.workers()} == {UNLEARNT}
    assert not len(run._registry.paid_waiting)


def test_what_has_no_room_waits_and_is_served() -> None:
    at_once = [Request(one.number, 2.0, one.blocks, one.tail, one.outputs) for one in WORK]
    run = Replay(at_once, SETUP, "cacheAware").run()
    assert run.waited > 0
    assert sum(run.served) == len(WORK)


# What is not sound is no result.


def test_a_frame_that_is_lost_is_noticed() -> None:
    class Lossy(Replay):
        lost = False

        def _deliver(self, worker: SimWorker, data: bytes) -> None:
            if not self.lost and self._now > 1000.5 and b"delta" in data:
                self.lost = True
                return
            super()._deliver(worker, data)

    with pytest.raises(SimulationError, match="asked for something"):
        Lossy(WORK, SETUP, "cacheAware").run()


def test_an_index_that_is_wrong_at_the_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimWorker, "digest", lambda _: 1)
    with pytest.raises(SimulationError, match="the index is wrong about replay-0"):
        Replay(WORK, SETUP, "random").run()


def test_a_hit_on_what_is_not_there_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimWorker, "_follow", lambda *_: None)
    with pytest.raises(SimulationError, match="served from a block that is not there"):
        Replay(WORK, SETUP, "cacheAware").run()


def test_a_request_answered_short_is_noticed() -> None:
    class Hasty(Replay):
        def _send(self, request: Request, *given: Any) -> None:
            super()._send(request, *given)
            next(reversed(self._open)).max_tokens = 1

    with pytest.raises(SimulationError, match="not answered once and whole"):
        Hasty(WORK, SETUP, "random").run()


def test_what_is_learnt_can_be_scaled_and_plotted() -> None:
    trace = replay.Trace("made up", lambda: WORK, SETUP)
    found = list(replay_sensitivity.rows(trace))
    assert len(found) == 2 * 3 * len(replay_sensitivity.FACTORS)
    drawn = replay_sensitivity.plot(found)
    assert drawn.count("<polyline") == 2 * 3
    assert drawn.startswith("<svg ")
    assert "nan" not in drawn


# The table.


def test_rows_have_their_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = replay.Trace("mooncake", lambda: WORK, SETUP, replay.MOONCAKE_BARS)
    monkeypatch.setattr(replay, "TRACES", (trace,))
    rows = list(replay.measured(None))
    held = {one["row"]: one["bar"] for one in rows if "bar" in one}
    assert held == {
        "mooncake: block hit ratio, beside ideal shared cache": "≥ 0.92x",
        "mooncake: block hit ratio, beside random": "≥ 1.9x",
        "mooncake: queue met, p99, beside leastLoaded": "≤ 1x",
        "mooncake: fullest queue of each second, p99, beside leastLoaded": "≤ 1.1x",
        "mooncake: second half: block hit ratio, beside ideal shared cache": "≥ 0.92x",
    }
    assert all(replay.line(one) for one in rows)


def test_without_traces_it_says_so(tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    absent = (partial(mooncake, tmp_path), partial(sessions, tmp_path, within=1.0, until=1.0))
    monkeypatch.setattr(replay, "TRACES", tuple(replay.Trace("none", load, SETUP) for load in absent))
    assert list(replay.measured(None)) == []
    assert capsys.readouterr().out.count("left out, there is no") == 2
