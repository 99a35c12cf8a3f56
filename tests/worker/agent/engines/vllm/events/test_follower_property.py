"""Follower and residents against a plain model: under any loss, order and restart the reported set is sound, and whole
again once healed: with snapshots always, without them unless something was lost for good.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cachefleet_core.block_keys import BlockKey
from cachefleet_worker.agent.blocks.block_events import BlockRemoved, BlockStored
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.vllm.events.epoch import Limits
from cachefleet_worker.agent.engines.vllm.events.event_reader import EventReader
from cachefleet_worker.agent.engines.vllm.events.follower import Follower
from cachefleet_worker.agent.engines.vllm.events.kv_events import decode_batch
from cachefleet_worker.agent.engines.vllm.events.messages import (
    Apply,
    Count,
    Effect,
    Forget,
    Live,
    Marked,
    NewEpoch,
    PeekMark,
    Replayed,
    ReplayEnded,
    ReplayFailed,
    RequestReplay,
    RequestSnapshot,
    Restarted,
    Restore,
    Seq,
    Snapped,
    SnapshotFailed,
    Tick,
    UnreadableBatch,
)
from tests.worker.agent.model import BLOCK_SIZE, CONTRACT, INDEX_KEY, Block, ModelEngine
from tests.worker.agent.receiver import Receiver, checked

LIMITS = Limits(
    held_batches=6,
    attempts=3,
    retry_seconds=1.0,
    probe_seconds=5.0,
    fingerprints=64,
    restore_cap_seconds=20.0,
    restore_retry_seconds=10.0,
)
UNREADABLE = (b"\xc1", b"\x93\x00\x91\xa7removed\x00")
Tokens = st.tuples(st.integers(0, 1), st.integers(0, 1))


def live_batch(engine: ModelEngine) -> Live:
    seq, payload = engine.publish()
    return Live(Seq(seq), payload)


@dataclass
class Fetch:
    """A snapshot asked for; ``taken`` is what the engine held when it came to it."""

    ask: RequestSnapshot
    taken: tuple[int, str, list[bytes]] | None = None


class FollowerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.asks: deque[RequestReplay] = deque()
        self.fetches: list[Fetch] = []
        self.delayed: list[Live] = []
        self.duplicable: deque[Live] = deque(maxlen=8)
        self.lost = False
        self.doubted = False

    @initialize(
        history=st.integers(0, 12),
        buffer=st.sampled_from([1, 2, 4, 12, 100]),
        as_maps=st.booleans(),
        plugin=st.booleans(),
        replay=st.sampled_from([True, True, False]),
    )
    def begin(self, history: int, buffer: int, as_maps: bool, plugin: bool, replay: bool) -> None:  # noqa: FBT001 (hypothesis fills it in)
        self.buffer, self.as_maps, self.plugin = buffer, as_maps or plugin, plugin
        self.follower = Follower(replay=replay or not plugin, snapshots=plugin, limits=LIMITS)
        self._new_process()
        for number in range(history):
            self.engine.store([Block((number % 2, number // 2 % 2))])
            self.engine.publish()
        self._fresh_residents()
        self._do(self.follower.start(self.now))

    # What the engine does

    @rule(data=st.data(), tokens=st.lists(Tokens, min_size=1, max_size=4), salt=st.sampled_from(["", "a", "b"]))
    def store(self, data: Any, tokens: list[tuple[int, int]], salt: str) -> None:
        parents: list[Block | None] = [None, *(self.engine.held() if self.plugin else self.engine.known)]
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

    @precondition(lambda self: self.plugin)
    @rule(how=st.sampled_from(["live", "live", "drop", "delay"]))
    def heartbeat(self, how: str) -> None:
        batch = self._heartbeat()
        if how == "delay":
            self.delayed.append(batch)
        elif how == "live":
            self._step(batch)

    @rule(payload=st.sampled_from(UNREADABLE), live=st.booleans())
    def publish_what_nobody_can_read(self, payload: bytes, live: bool) -> None:  # noqa: FBT001 (as above)
        seq, _ = self.engine.publish()
        self.engine.buffer[-1] = (seq, payload)
        if live:
            self._step(Live(Seq(seq), payload))

    @precondition(lambda self: self.plugin and self.follower.settled)
    @rule(data=st.data(), lose=st.booleans())
    def diverge(self, data: Any, lose: bool) -> None:  # noqa: FBT001 (as above)
        """By what no number tells: a defect."""
        self.doubted = True
        if lose and self.engine.held():
            block = data.draw(st.sampled_from(self.engine.held()))
            self.residents.apply([BlockRemoved([block.hash], "GPU")])
        else:
            self.residents.apply([BlockStored([12345], None, [7] * BLOCK_SIZE, BLOCK_SIZE, medium="GPU")])
        self.receiver.apply(self.residents.take())

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

    @precondition(lambda self: any(fetch.taken is None for fetch in self.fetches))
    @rule()
    def take_snapshot(self) -> None:
        """The engine comes to it; what happens until it arrives is not in it."""
        fetch = next(fetch for fetch in self.fetches if fetch.taken is None)
        seq, payloads = self.engine.snapshot()
        fetch.taken = (seq, self.engine.boot, payloads)

    @precondition(lambda self: self.fetches)
    @rule(how=st.sampled_from(["whole", "whole", "whole", "fails"]))
    def bring_snapshot(self, how: str) -> None:
        self._bring(self.fetches.pop(0), how)

    @rule(seconds=st.sampled_from([0.3, 1.1, 5.1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._step(Tick())

    # What must hold

    @invariant()
    def reported_is_what_the_engine_holds(self) -> None:
        if not self.doubted:
            assert self.receiver.keys <= self._applied_truth()
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
            self._answer_all()
            self.now += 6.0
            self._step(Tick())
            self._check()
            if self.plugin:
                self._step(self._heartbeat())
        assert self.follower.settled
        assert self.follower.next_seq == self.engine.seq + 1, "wedged"
        if self.plugin:
            assert self.follower.whole
            assert self.receiver.keys == self.engine.truth()
        elif not self.lost:
            assert self.receiver.keys == self.engine.claims[self.engine.seq]

    def _answer_all(self) -> None:
        while self.asks or self.fetches:
            if self.asks:
                self._answer(self.asks.popleft(), "whole")
            if self.fetches:
                self._bring(self.fetches.pop(0), "whole")

    # Parts

    def _new_process(self) -> None:
        self.process = getattr(self, "process", 0) + 1
        boot = f"process {self.process}"
        self.engine = ModelEngine(buffer_steps=self.buffer, as_maps=self.as_maps, plugin=self.plugin, boot=boot)
        self.delayed.clear()
        self.duplicable.clear()

    def _fresh_residents(self) -> None:
        self.epochs = self.process
        self.residents = Residents(INDEX_KEY, CONTRACT, block_size=BLOCK_SIZE)
        self.event_reader = EventReader(self.residents, snapshots=self.plugin)
        self.receiver = Receiver()
        self.lost = self.doubted = False

    def _heartbeat(self) -> Live:
        seq, payload = self.engine.heartbeat()
        return Live(Seq(seq), payload)

    def _bring(self, fetch: Fetch, how: str) -> None:
        """What was taken, or, where nothing was yet, what there is now."""
        if how == "fails":
            self._step(SnapshotFailed(fetch.ask.ticket))
            return
        seq, payloads = self.engine.snapshot()
        seq, boot, payloads = fetch.taken or (seq, self.engine.boot, payloads)
        draft = self.residents.draft()
        for payload in payloads:
            draft.apply(decode_batch(payload).events)
        self.event_reader.lay_ready(draft)
        self._step(Snapped(fetch.ask.ticket, Seq(seq), boot))

    def _applied_truth(self) -> frozenset[BlockKey]:
        return self.engine.truths.get(self.follower.next_seq - 1, frozenset())

    def _answer(self, ask: RequestReplay, how: str) -> None:
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
            self._do_one(effect)
        self.receiver.apply(self.residents.take())

    def _do_one(self, effect: Effect) -> None:
        match effect:
            case Apply():
                self._found(self.event_reader.apply(effect.payload))
                self.lost |= self.event_reader.counts()["unreadable"] > 0
            case PeekMark():
                self._found(self.event_reader.peek(effect.payload))
            case Restore():
                self.event_reader.restore()
                self.doubted = self.lost = False
            case RequestReplay():
                self.asks.append(effect)
            case RequestSnapshot():
                self.fetches.append(Fetch(effect))
            case Forget() | NewEpoch() | Count():
                self._give_up(effect)

    def _found(self, found: Marked | UnreadableBatch | None) -> None:
        self.doubted |= isinstance(found, UnreadableBatch)
        if found is not None:
            self._step(found)

    def _give_up(self, effect: Forget | NewEpoch | Count) -> None:
        match effect:
            case Forget():
                self.lost, self.doubted = True, False
                self.residents.forget()
            case NewEpoch():
                self._fresh_residents()
            case Count(what="late_starts"):
                self.lost = True

    def _check(self) -> None:
        self.reported_is_what_the_engine_holds()
        self.snapshot_is_what_was_reported()


FollowerMachine.TestCase.settings = settings(
    max_examples=(5 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 1) * settings().max_examples,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestFollower = FollowerMachine.TestCase
