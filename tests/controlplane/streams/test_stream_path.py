"""Any history of a report stream: what the index holds is what the worker holds, as soon as the line is quiet."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cachefleet_controlplane.fleet.agent_connection import Connection
from cachefleet_controlplane.fleet.agent_connections import RefusedError
from cachefleet_core.block_keys import BlockKey, Tier
from cachefleet_core.report_frames import Cleared, Delta, Hello, Loads, Operation, Resync, UpFrame
from tests.controlplane.chains import chain, removed, stored
from tests.controlplane.fleets import FakeLink, LiveFleet, fleet_of, wid
from tests.controlplane.frames import delta, hello, snapshot, state

KEYS = chain(1, 6)
WORKER = wid("demo-0")
keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True)


@dataclass
class Sent:
    """A frame on its way; frames of one connection arrive in order unless a rule says otherwise."""

    connection: Connection
    frame: UpFrame


class PathMachine(RuleBasedStateMachine):
    """A plain agent (a set, a number, a queue of frames), a hostile line, and the real receiving side."""

    @initialize(hostile=st.booleans())
    def begin(self, *, hostile: bool) -> None:
        self.hostile = hostile
        """Whether frames get lost and changes unpublished; otherwise only what a sound line does happens."""
        self.fleet: LiveFleet = fleet_of("demo-0")
        self.truth: set[BlockKey] = set()
        self.line: list[Sent] = []
        self.epochs = 0
        self.hung_up: set[int] = set()
        self.clean = True
        """Nothing has happened to the line that a stream may need healing for."""
        self.restart()

    # The worker.

    @rule(some=keys)
    def store(self, some: list[BlockKey]) -> None:
        self.truth |= set(some)
        self.publish(stored(some))

    @rule(some=keys)
    def evict(self, some: list[BlockKey]) -> None:
        self.truth -= set(some)
        self.publish(removed(some))

    @rule(some=keys, others=keys)
    def change_much(self, some: list[BlockKey], others: list[BlockKey]) -> None:
        self.truth = (self.truth - set(some)) | set(others)
        self.publish(removed(some), stored(others))

    @rule()
    def clear(self) -> None:
        self.truth = set()
        self.publish(Cleared())

    @rule()
    def restart(self) -> None:
        """The worker dies and comes back, empty, in a new epoch."""
        self.epochs += 1
        self.truth = set()
        self.sequence = 0
        self.reconnect()

    @precondition(lambda self: self.hostile)
    @rule(some=keys)
    def slip(self, some: list[BlockKey]) -> None:
        """Something changes and nobody publishes it."""
        self.truth ^= set(some)
        self.clean = False

    # The agent.

    def publish(self, *operations: Operation) -> None:
        self.sequence += 1
        self.post(delta(self.sequence, *operations))

    def post(self, frame: UpFrame) -> None:
        self.line.append(Sent(self.connection, frame))

    @rule()
    def reconnect(self) -> None:
        """A new connection; the old one's frames are still under way, and its end is seen late or never."""
        self.link = FakeLink()
        self.connection = self.fleet.connect(self.link)
        self.post(hello(epoch=f"e{self.epochs}"))
        self.snapshot(parts=1)

    @rule(parts=st.integers(1, 4))
    def snapshot(self, parts: int) -> None:
        held = sorted(self.truth)
        for part in range(parts):
            chains = [[key] for key in held[part::parts]]
            self.post(snapshot(self.sequence, *chains, part=part, last=part == parts - 1))

    @rule()
    def report(self) -> None:
        self.post(state(self.sequence, [(key, Tier.DEVICE) for key in self.truth]))

    @rule()
    def answer(self) -> None:
        """Do what was asked."""
        if any(isinstance(frame, Resync) for frame in self.link.sent):
            self.link.sent.clear()
            self.snapshot(parts=2)

    # The line.

    @precondition(lambda self: self.line)
    @rule(count=st.integers(1, 8))
    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.line))):
            self.arrive(self.line.pop(0))

    @precondition(lambda self: self.hostile and self.line)
    @rule(at=st.integers(0, 30))
    def drop(self, at: int) -> None:
        del self.line[at % len(self.line)]
        self.clean = False

    @precondition(lambda self: self.line)
    @rule(at=st.integers(0, 30), to=st.integers(0, 30))
    def duplicate(self, at: int, to: int) -> None:
        """A frame comes again later: a Delta is known by its number, and harmless whatever came in between."""
        at %= len(self.line)
        sent = self.line[at]
        if isinstance(sent.frame, Delta) or self.hostile:
            self.clean &= isinstance(sent.frame, Delta)
            self.line.insert(at + 1 + to % (len(self.line) - at), sent)

    @precondition(lambda self: self.hostile and len(self.line) > 1)
    @rule(at=st.integers(0, 30))
    def reorder(self, at: int) -> None:
        i = at % (len(self.line) - 1)
        self.line[i], self.line[i + 1] = self.line[i + 1], self.line[i]
        self.clean = False

    @precondition(lambda self: self.hostile)
    @rule()
    def close_unseen(self) -> None:
        """The receiving side notices the end of the connection first."""
        self.hang_up(self.connection)

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 20.0]))
    def wait(self, seconds: float) -> None:
        seconds = seconds if self.hostile else 0.1
        self.fleet.now += seconds
        self.fleet.expire()
        self.clean &= seconds < 1

    def arrive(self, sent: Sent) -> None:
        if sent.connection.number in self.hung_up:
            return
        try:
            if isinstance(sent.frame, Hello):
                self.fleet.hello(sent.connection, sent.frame)
            elif not isinstance(sent.frame, Loads):
                self.fleet.receive(sent.connection, sent.frame)
        except RefusedError:
            self.hang_up(sent.connection)

    def hang_up(self, connection: Connection) -> None:
        self.clean = False
        self.hung_up.add(connection.number)
        self.fleet.disconnect(connection)

    # What must hold.

    def held(self) -> set[BlockKey]:
        return {key for key in KEYS if self.fleet.index.match([key], [WORKER]) == [1]}

    @invariant()
    def counts_agree(self) -> None:
        assert self.fleet.index.stats().held.get(WORKER, 0) == len(self.held())

    @rule()
    def settle(self) -> None:
        """Whatever happened to a sound line, what has arrived is true without any question asked."""
        self.deliver_all()
        if self.clean:
            assert self.held() == self.truth
            assert self.link.resyncs() == []

    @precondition(lambda self: self.hostile)
    @rule()
    def heal(self) -> None:
        """A quiet line: all arrives, the agent speaks each second and does what it is asked; a minute at most."""
        self.settle()
        for _ in range(60):
            if self.link.closed or self.connection.number in self.hung_up:
                self.reconnect()
            self.report()
            self.deliver_all()
            if self.fleet.worker().stream == "live" and self.connection.number not in self.hung_up:
                break
            self.answer()
            self.deliver_all()
            self.fleet.now += 1
        assert self.held() == self.truth
        assert not self.fleet.worker().stale
        self.clean = True
        self.link.sent.clear()

    @precondition(lambda self: self.hostile)
    @rule()
    def begin_anew(self) -> None:
        """A new epoch's first word drops all that was, without any removal being reported."""
        self.deliver_all()
        self.epochs += 1
        self.truth = set()
        self.sequence = 0
        self.link = FakeLink()
        self.connection = self.fleet.connect(self.link)
        self.fleet.hello(self.connection, hello(epoch=f"e{self.epochs}"))
        assert self.held() == set()
        self.snapshot(parts=1)

    def deliver_all(self) -> None:
        while self.line:
            self.arrive(self.line.pop(0))

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            self.heal()


def test_any_history_ends_in_agreement() -> None:
    run_state_machine_as_test(
        PathMachine, settings=settings(max_examples=2 * settings().max_examples, stateful_step_count=40, deadline=None)
    )
