"""The Lease: the table of verdicts, the loop, and that two never lead at once, whatever happens to them."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cachefleet_operator.kube.leader import Leader, LeaseVerdict, Observation, Record, Timing, decide, observe
from cachefleet_operator.kube.objects import Ref
from cachefleet_runtime.kubernetes import RetryableError
from tests.controlplane.waiting import until
from tests.operator.store import Store

pytestmark = pytest.mark.usefixtures("hurried")

LEASE = Ref("Lease", "ops", "cachefleet-operator")
TIMING = Timing(duration=15, renew=10, retry=2)


seconds = itertools.count()


def today() -> dt.datetime:
    """Never the same twice, and of no other use."""
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=next(seconds))


@pytest.mark.parametrize(
    ("record", "age", "verdict"),
    [
        (None, 0, LeaseVerdict.CREATE),
        (Record(holder="me", duration=15), 99, LeaseVerdict.RENEW),
        (Record(holder="other", duration=15), 14.9, LeaseVerdict.WAIT),
        (Record(holder="other", duration=15), 15, LeaseVerdict.TAKE),
        (Record(holder="", duration=15), 0, LeaseVerdict.TAKE),
        (Record(holder="other"), 0, LeaseVerdict.TAKE),
    ],
)
def test_decides(record: Record | None, age: float, verdict: LeaseVerdict) -> None:
    assert decide(Observation(record, 100), "me", 100 + age) is verdict


def test_only_a_change_of_the_record_starts_its_time_anew() -> None:
    first = observe(None, Record(holder="a", stamp="1"), 5)
    assert observe(first, Record(holder="a", stamp="1"), 9).since == 5
    assert observe(first, Record(holder="a", stamp="2"), 9).since == 9


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_what_a_slow_answer_tells_is_as_young_as_the_answer() -> None:
    clock, store = Clock(), Store()
    await Leader(store, LEASE, me="b", timing=TIMING, clock=clock, today=today)._try()
    late = Leader(store, LEASE, me="a", timing=TIMING, clock=clock, today=today)

    def slow(_verb: str, _ref: Ref) -> None:
        clock.now += 11

    store.before = slow
    await late._try()
    store.before = lambda _verb, _ref: None
    clock.now += 14  # b may have renewed just before the answer left, and has 14 of its 15 seconds behind it
    await late._try()
    assert not late.holds()
    clock.now += 1
    await late._try()
    assert late.holds()


async def test_time_counts_from_before_a_request() -> None:
    clock, store = Clock(), Store()
    slow = Leader(store, LEASE, me="a", timing=TIMING, clock=clock, today=today)

    def delay(_verb: str, _ref: Ref) -> None:
        clock.now += 6

    store.before = delay
    await slow._try()
    assert store.objects[LEASE]["spec"]["holderIdentity"] == "a"
    assert not slow.holds()


async def test_another_name_in_the_lease_ends_it_at_once() -> None:
    store = Store()
    first = leader(store, "a")
    await first._try()
    assert first.holds()
    await store.replace(_held_by("b", store.objects[LEASE]))
    await first._try()
    assert not first.holds()


def _held_by(name: str, lease: dict[str, Any]) -> dict[str, Any]:
    return {**lease, "spec": {**lease["spec"], "holderIdentity": name}}


def _verbs(store: Store) -> list[str]:
    """What is asked of the store from now on."""
    asked = list[str]()
    store.before = lambda verb, _ref: asked.append(verb)
    return asked


async def test_the_holder_renews_with_one_request() -> None:
    store = Store()
    asked = _verbs(store)
    first = leader(store, "a", clock=Clock())
    for _ in range(30):
        await first._try()
    assert asked == ["get", "create", *["update"] * 29]
    await first._release()
    assert asked[31:] == ["update"]
    assert store.objects[LEASE]["spec"]["holderIdentity"] == ""


async def test_a_lease_that_somebody_touched_is_read_again_and_kept() -> None:
    store = Store()
    first = leader(store, "a", clock=Clock())
    await first._try()
    touched = store.objects[LEASE]
    await store.replace({**touched, "metadata": {**touched["metadata"], "annotations": {"x": "y"}}})
    asked = _verbs(store)
    await first._try()
    assert asked == ["update", "get", "update"]
    assert first.holds()
    assert store.objects[LEASE]["metadata"]["annotations"] == {"x": "y"}


async def test_a_lease_that_somebody_deleted_is_made_again() -> None:
    store = Store()
    first = leader(store, "a", clock=Clock())
    await first._try()
    del store.objects[LEASE]
    asked = _verbs(store)
    await first._try()
    assert asked == ["update", "get", "create"]
    assert first.holds()


async def test_after_a_renewal_without_an_answer_the_lease_is_read() -> None:
    store = Store()
    first = leader(store, "a", clock=Clock())
    await first._try()
    answered = store.replace

    async def lost(manifest: dict[str, Any]) -> dict[str, Any]:
        await answered(manifest)
        raise RetryableError(0, "NoAnswer", "lost")

    store.replace = lost  # type: ignore[method-assign]  # carried out, and nobody told
    await first._try()
    store.replace = answered  # type: ignore[method-assign]
    asked = _verbs(store)
    await first._try()
    assert asked == ["get", "update"]
    assert first.holds()


class TwoContenders(RuleBasedStateMachine):
    """Two loops over one Lease; requests take time, fail before or after their deed; processes freeze."""

    @initialize()
    def start(self) -> None:
        self.clock = Clock()
        self.store = Store()
        self.store.before = self._before
        self.delays: list[float] = []
        self.lost = False
        self.leaders = [
            Leader(_Lossy(self), LEASE, me=name, timing=TIMING, clock=self.clock, today=today) for name in "ab"
        ]

    @rule(who=st.integers(0, 1), delays=st.lists(st.sampled_from([0.1, 1, 5, 11, 20]), max_size=2), lost=st.booleans())
    def goes_round(self, who: int, delays: list[float], lost: bool) -> None:  # noqa: FBT001  # drawn by hypothesis
        self.delays, self.lost = list(delays), lost
        asyncio.run(self.leaders[who]._try())
        self.delays, self.lost = [], False

    @rule(seconds=st.sampled_from([0.5, 2, 4, 9.9, 10, 14.9, 15, 60]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(who=st.integers(0, 1))
    def gives_it_up(self, who: int) -> None:
        asyncio.run(self.leaders[who]._release())

    @invariant()
    def one_leads(self) -> None:
        assert sum(leader.holds() for leader in getattr(self, "leaders", ())) <= 1

    def _before(self, _verb: str, _ref: Ref) -> None:
        if self.delays:
            self.clock.now += self.delays.pop()


class _Lossy:
    """The store, whose answers to writes may get lost after they were carried out."""

    def __init__(self, machine: TwoContenders) -> None:
        self._machine = machine

    async def get(self, ref: Ref) -> dict[str, Any] | None:
        return await self._machine.store.get(ref)

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return self._answer(await self._machine.store.create(manifest))

    async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return self._answer(await self._machine.store.replace(manifest))

    def _answer(self, value: dict[str, Any]) -> dict[str, Any]:
        if self._machine.lost:
            raise RetryableError(0, "NoAnswer", "lost")
        return value


TestTwoContenders = TwoContenders.TestCase


def leader(store: Store, name: str, *, clock: Clock | None = None, **timing: Any) -> Leader:
    """By the real clock unless it is given one; it goes round quickly in any case."""
    chosen = Timing(**{"duration": 1, "renew": 0.3, "retry": 0.02, **timing})
    time = clock or asyncio.get_running_loop().time
    return Leader(store, LEASE, me=name, timing=chosen, clock=time, today=today)


async def lead(led: list[str], name: str) -> None:
    led.append(name)
    await asyncio.Event().wait()


async def test_leads_renews_and_lets_go() -> None:
    store, clock, led, asked = Store(), Clock(), list[str](), list[str]()
    store.before = lambda verb, _ref: asked.append(verb)
    first = leader(store, "a", clock=clock)
    task = asyncio.create_task(first.run(lambda: lead(led, "a")))
    await until(lambda: asked.count("update") >= 3)
    assert first.holds()
    task.cancel()
    await asyncio.wait({task})
    assert led == ["a"]
    assert not first.holds()
    assert store.objects[LEASE]["spec"]["holderIdentity"] == ""
    second = leader(store, "b")
    await second._try()
    assert second.holds()
    assert store.objects[LEASE]["spec"]["leaseTransitions"] == 1


async def test_a_term_ends_when_renewing_fails_and_begins_again() -> None:
    store, clock, ends = Store(), Clock(), list[str]()

    async def term() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("ended")

    alone = leader(store, "a", clock=clock)
    task = asyncio.create_task(alone.run(term))
    await until(alone.holds)

    def unreachable(_verb: str, _ref: Ref) -> None:
        raise RetryableError(0, "NoAnswer", "down")

    store.before = unreachable
    clock.now += 1
    await until(lambda: ends == ["ended"])
    assert not alone.holds()
    store.before = lambda _verb, _ref: None
    await until(alone.holds)
    task.cancel()
    await asyncio.wait({task})


async def test_one_that_could_not_renew_lets_go_all_the_same() -> None:
    """The Lease names it still, and its successor would wait until it has run out."""
    store, clock = Store(), Clock()
    alone = leader(store, "a", clock=clock)
    task = asyncio.create_task(alone.run(lambda: lead([], "a")))
    await until(alone.holds)

    def unreachable(verb: str, _ref: Ref) -> None:
        if verb == "update" and not task.cancelling():
            raise RetryableError(0, "NoAnswer", "down")

    store.before = unreachable
    clock.now += 1
    await until(lambda: not alone.holds())
    assert store.objects[LEASE]["spec"]["holderIdentity"] == "a"
    task.cancel()
    await asyncio.wait({task})
    assert store.objects[LEASE]["spec"]["holderIdentity"] == ""


async def test_a_standby_does_not_touch_the_lease_when_it_ends() -> None:
    store, asked = Store(), list[str]()
    await leader(store, "a")._try()
    waiting = leader(store, "b")
    task = asyncio.create_task(waiting.run(lambda: lead([], "b")))
    await until(lambda: waiting.answered)
    store.before = lambda verb, _ref: asked.append(verb)
    task.cancel()
    await asyncio.wait({task})
    assert "update" not in asked
    assert store.objects[LEASE]["spec"]["holderIdentity"] == "a"


async def test_a_server_that_never_answers_does_not_keep_a_term_alive() -> None:
    store = Store()
    stuck = leader(store, "a")
    task = asyncio.create_task(stuck.run(lambda: lead([], "a")))
    await until(stuck.holds)
    hanging = asyncio.Event()

    async def never(_asked: object) -> None:
        await hanging.wait()

    store.get = store.replace = never  # type: ignore[method-assign,assignment]  # a server gone silent
    await until(lambda: not stuck.holds())
    task.cancel()
    await asyncio.wait({task})


async def test_a_term_that_fails_ends_the_loop_and_lets_go() -> None:
    store = Store()

    async def term() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        await leader(store, "a").run(term)
    assert store.objects[LEASE]["spec"]["holderIdentity"] == ""


async def test_a_failure_is_told_since_when_it_lasts_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock, store, told = Clock(), Store(), list[tuple[str, float]]()
    contender = Leader(
        store,
        LEASE,
        me="a",
        timing=TIMING,
        clock=clock,
        today=today,
        failed=lambda reason, seconds: told.append((reason, seconds)),
    )

    def refuse(_verb: str, _ref: Ref) -> None:
        raise RetryableError(401, "Unauthorized", "Unauthorized")

    store.before = refuse
    for _ in range(45):
        await contender._try()
        clock.now += 2
    assert contender.failure is not None
    assert contender.failure.since == 1000
    assert "does not take this pod's token" in contender.failure.message
    assert told.pop() == ("Unauthorized", 88.0)
    assert len([each for each in caplog.messages if "could not be renewed or taken: 401" in each]) == 2
    store.before = lambda _verb, _ref: None
    await contender._try()
    assert told.pop() == ("", 0.0)
