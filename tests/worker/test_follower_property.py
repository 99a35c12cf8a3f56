"""Follower and residents against a plain model: under any loss, order and restart the reported set is sound, and whole
again once healed unless something was lost for good.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cachefleet_worker.agent.epoch import Limits
from cachefleet_worker.agent.events import decode_batch
from cachefleet_worker.agent.follower import Follower
from cachefleet_worker.agent.residents import Residents
from cachefleet_worker.agent.signals import (
    Apply,
    Ask,
    Count,
    Effect,
    Forget,
    Live,
    NewEpoch,
    Replayed,
    ReplayEnded,
    ReplayFailed,
    Restarted,
    Seq,
    Tick,
)
from tests.worker.model import BLOCK_SIZE, CONTRACT, INDEX_KEY, Block, ModelEngine
from tests.worker.receiver import Receiver, checked

LIMITS = Limits(held_batches=6, attempts=3, retry_seconds=1.0, probe_seconds=5.0, fingerprints=64)
Tokens = st.tuples(st.integers(0, 1), st.integers(0, 1))


def live_batch(engine: ModelEngine) -> Live:
    seq, payload = engine.publish()
    return Live(Seq(seq), payload)


class FollowerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.follower = Follower(limits=LIMITS)
        self.asks: deque[Ask] = deque()
        self.delayed: list[Live] = []
        self.duplicable: deque[Live] = deque(maxlen=8)
        self.lost = False

    @initialize(history=st.integers(0, 12), buffer=st.sampled_from([1, 2, 4, 12, 100]), as_maps=st.booleans())
    def begin(self, history: int, buffer: int, as_maps: bool) -> None:  # noqa: FBT001 (hypothesis fills it in)
        self.buffer, self.as_maps = buffer, as_maps
        self._new_process()
        for number in range(history):
            self.engine.store([Block((number % 2, number // 2 % 2))])
            self.engine.publish()
        self._fresh_residents()
        self._do(self.follower.start(self.now))

    # What the engine does

    @rule(data=st.data(), tokens=st.lists(Tokens, min_size=1, max_size=4), salt=st.sampled_from(["", "a", "b"]))
    def store(self, data: Any, tokens: list[tuple[int, int]], salt: str) -> None:
        parents: list[Block | None] = [None, *self.engine.known]
        parent = data.draw(st.sampled_from(parents))
        chain: list[Block] = []
        for one in tokens:
            parent = Block(one, parent, salt if parent is None else "")
            chain.append(parent)
        self.engine.store(chain)

    @precondition(lambda self: self.engine.held())
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        self.engine.remove(data.draw(st.sampled_from(self.engine.held())))

    @precondition(lambda self: self.engine.held())
    @rule(data=st.data())
    def reuse(self, data: Any) -> None:
        block = data.draw(st.sampled_from(self.engine.held()))
        if all(self.engine.copies[one] for one in block.chain):
            self.engine.reuse(block)

    @rule()
    def clear(self) -> None:
        self.engine.clear()

    @rule(signal=st.sampled_from(["disconnected", "process_start", "sequence"]))
    def restart(self, signal: str) -> None:
        self._new_process()
        if signal == "sequence":  # seen only where the new process's numbers do not pass the old one's
            first = live_batch(self.engine)
            self._step(first)
            if self.epochs == self.process:
                return
        self._step(Restarted(signal))

    # What the network does

    @rule(how=st.sampled_from(["live", "live", "live", "drop", "delay"]))
    def publish(self, how: str) -> None:
        batch = live_batch(self.engine)
        if how == "delay":
            self.delayed.append(batch)
        elif how == "live":
            self._step(batch)
        self.duplicable.append(batch)

    @precondition(lambda self: self.engine.held())
    @rule(data=st.data(), spared=st.integers(0, 2))
    def lose_more_than_the_buffer(self, data: Any, spared: int) -> None:
        self.engine.remove(data.draw(st.sampled_from(self.engine.held())))
        for _ in range(max(1, self.buffer + 1 - spared)):
            self.engine.publish()
        self._step(live_batch(self.engine))

    @precondition(lambda self: self.delayed)
    @rule()
    def deliver_delayed(self) -> None:
        self._step(self.delayed.pop(0))

    @precondition(lambda self: self.duplicable)
    @rule(data=st.data())
    def duplicate(self, data: Any) -> None:
        batch = data.draw(st.sampled_from(list(self.duplicable)))
        if batch not in self.delayed and batch.seq < self.follower.next_seq:
            self._step(batch)

    @precondition(lambda self: self.asks)
    @rule(how=st.sampled_from(["whole", "whole", "no end", "hole", "fails"]))
    def answer(self, how: str) -> None:
        self._answer(self.asks.popleft(), how)

    @rule(seconds=st.sampled_from([0.3, 1.1, 5.1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._step(Tick())

    # What must hold

    @invariant()
    def reported_is_what_the_engine_holds(self) -> None:
        assert self.receiver.held == {(key, tier) for key, tier in self.receiver.held if key in self._applied_truth()}
        assert self.receiver.digest == self.residents.digest
        assert len(self.receiver.held) == self.residents.held

    @invariant()
    def snapshot_is_what_was_reported(self) -> None:
        fresh = Receiver()
        fresh.apply(checked(self.residents.snapshot()))
        assert fresh.held == self.receiver.held

    @invariant()
    def bounds_hold(self) -> None:
        assert self.follower.held_back <= LIMITS.held_batches

    def teardown(self) -> None:
        """Heal: everything is answered in full; then nothing is missing but what was lost for good."""
        if not hasattr(self, "engine"):
            return
        self.engine.publish()
        for _ in range(50):
            while self.asks:
                self._answer(self.asks.popleft(), "whole")
            self.now += 6.0
            self._step(Tick())
            self._check()
        assert self.follower.settled
        assert self.follower.next_seq == self.engine.seq + 1, "wedged"
        if not self.lost:
            assert self.receiver.keys == self.engine.claims[self.engine.seq]

    # Parts

    def _new_process(self) -> None:
        self.process = getattr(self, "process", 0) + 1
        self.engine = ModelEngine(buffer_steps=self.buffer, as_maps=self.as_maps)
        self.delayed.clear()
        self.duplicable.clear()

    def _fresh_residents(self) -> None:
        self.epochs = self.process
        self.residents = Residents(INDEX_KEY, CONTRACT, block_size=BLOCK_SIZE)
        self.receiver = Receiver()
        self.lost = False

    def _applied_truth(self) -> frozenset[Any]:
        return self.engine.truths.get(self.follower.next_seq - 1, frozenset())

    def _answer(self, ask: Ask, how: str) -> None:
        batches = self.engine.replay(ask.start)
        if how == "fails":
            batches = []
        elif how == "hole" and len(batches) > 2:
            del batches[1]
        for seq, payload in batches:
            self._step(Replayed(ask.ticket, Seq(seq), payload))
        self._step(ReplayFailed(ask.ticket) if how in ("fails", "no end") else ReplayEnded(ask.ticket))

    def _step(self, event: Any) -> None:
        self._do(self.follower.step(event, self.now))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Apply():
                    batch = decode_batch(effect.payload)
                    assert not batch.malformed
                    assert not batch.unknown
                    self.residents.apply(batch.events)
                case Ask():
                    self.asks.append(effect)
                case Forget():
                    self.lost = True
                    self.residents.forget()
                case Count(what="late_starts"):
                    self.lost = True
                case NewEpoch():
                    self._fresh_residents()
        self.receiver.apply(self.residents.take())

    def _check(self) -> None:
        self.reported_is_what_the_engine_holds()
        self.snapshot_is_what_was_reported()


FollowerMachine.TestCase.settings = settings(
    max_examples=settings().max_examples,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestFollower = FollowerMachine.TestCase
