"""A live fleet learns what its cached blocks are worth, and copies a prefix once waiting has paid for it."""

from __future__ import annotations

import pytest

from cachefleet_controlplane.routing.decision import Decision, Knowledge, Prompt, Reason
from cachefleet_controlplane.routing.worth import UNLEARNT, Worth
from cachefleet_core.block_keys import pack_keys
from tests.controlplane.chains import chain
from tests.controlplane.fleets import MODEL, LiveFleet, fleet_of, wid
from tests.controlplane.frames import state

HOT = chain(1, 100)
BUSY = Worth(eviction=0.1, requests_per_second=2.0, computed_per_second=500.0, request_tokens=1000.0)
LOAD = {"blocks_total": 4000, "blocks_free": 4000, "blocks_idle": 4000, "prefill_tokens_per_second": 1000.0}


def prompt(number: int = 0, *, blocks: int = 100) -> Prompt:
    keys = HOT[:blocks] + chain(100 + number, 2)
    return Prompt(len(keys) * 16 + 1, pack_keys(keys), 16, 16, Knowledge.EXACT)


@pytest.fixture
def fleet() -> LiveFleet:
    """One of two full workers holds what is asked for, and both are known to be busy."""
    fleet = fleet_of("demo-0", "demo-1")
    links = {"demo-0": fleet.report("demo-0", HOT, **LOAD), "demo-1": fleet.report("demo-1", (), **LOAD)}
    for _ in range(3):
        for name, link in links.items():
            fleet.receive(link.connection, state(0, digest=fleet.index.digest(wid(name)), **LOAD))
    for worker in fleet._registry.workers():
        worker.weigh(BUSY)
    for pool in fleet._registry.pools.values():
        pool.worth.tell(2, fleet.now)
    return fleet


def send(fleet: LiveFleet, asked: Prompt) -> Decision:
    decision = fleet.route(MODEL, asked)
    fleet.begin(decision, asked)
    return decision


def test_a_prefix_that_everybody_asks_for_is_copied_once_waiting_has_paid(fleet: LiveFleet) -> None:
    decisions: list[Decision] = []
    while not decisions or decisions[-1].worker == "demo-0":
        decisions.append(send(fleet, prompt(len(decisions))))
    *before, copied = decisions
    waited = sum(one.excess_seconds for one in before)
    assert before[-1].excess_seconds <= 2 * 1633 / 1000, "as long as the copy takes, about"
    assert copied.reason is Reason.LOAD_OVER_PREFIX
    assert copied.paid_seconds == pytest.approx(waited)
    assert next(one for one in copied.scores if one.worker == "demo-1").paid_seconds <= waited
    assert next(one for one in copied.scores if one.worker == "demo-0").paid_seconds == 0
    assert copied.prefix_tokens == 1600
    assert not fleet._registry.paid_waiting.of(pack_keys(HOT)[-8:], fleet.now)


def test_without_it_the_holder_would_be_far_behind(fleet: LiveFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(fleet._registry.paid_waiting), "add", lambda *_: None)
    decisions = [send(fleet, prompt(number)) for number in range(150)]
    longest = max(one.excess_seconds for one in decisions)
    assert longest > 3 * 1633 / 1000


def test_a_conversation_pays_for_no_copy(fleet: LiveFleet) -> None:
    """Each of its turns ends at another block, so none of them adds to what another has paid."""
    for blocks in range(60, 100, 2):
        send(fleet, prompt(blocks=blocks))
    assert len(fleet._registry.paid_waiting) == 19
    assert all(paid < 2 for paid, _ in fleet._registry.paid_waiting._known.values())


def test_to_decide_changes_nothing(fleet: LiveFleet) -> None:
    send(fleet, prompt())
    before = dict(fleet._registry.paid_waiting._known)
    assert [fleet.route(MODEL, prompt(1)).worker for _ in range(50)] == ["demo-0"] * 50
    assert fleet._registry.paid_waiting._known == before


def test_a_pool_learns_from_its_reports_and_its_requests() -> None:
    fleet = fleet_of("demo-0", "demo-1")
    links = {name: fleet.report(name, (), **LOAD) for name in ("demo-0", "demo-1")}
    for second in range(100):
        for name, link in links.items():
            told = {"prefix_queries": 1633 * second, "prefix_hits": 0}
            fleet.receive(link.connection, state(0, digest=fleet.index.digest(wid(name)), **LOAD, **told))
        asked = prompt(second)
        decision = fleet.route(MODEL, asked)
        with fleet.begin(decision, asked) as request:
            request.first_token()
        fleet.now += 1.0
    found = {worker.worth for worker in fleet._registry.workers()}
    assert len(found) == 1
    worth = found.pop()
    assert worth != UNLEARNT
    assert worth.requests_per_second == pytest.approx(1.0, rel=0.1)
    assert worth.computed_per_second == pytest.approx(1633, rel=0.1)


def test_a_worker_that_joins_costs_others_as_much_as_the_rest_of_its_pool(fleet: LiveFleet) -> None:
    pool = fleet._registry.pools["default/demo"]
    for _ in range(100):
        pool.worth.reported(1633, 0, fleet.now)
        pool.worth.sent(1633, 1633)
        fleet.now += 1.0
        pool.weigh(fleet.now)
    assert pool.shown != UNLEARNT
    fleet.report("demo-2", (), **LOAD)
    assert {worker.worth for worker in fleet._registry.workers()} == {pool.shown}
