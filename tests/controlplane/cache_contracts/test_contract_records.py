"""Contracts of a live fleet: what workers report and answers tell, by the minute, and as metrics."""

from __future__ import annotations

from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from cachefleet_controlplane.admin.findings.contract_findings import contract_findings
from cachefleet_controlplane.cache_contracts.contract_metrics import ContractCollector
from cachefleet_controlplane.cache_contracts.contract_records import ContractRecords
from cachefleet_controlplane.fleet.agent_connection import Connection
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.history.cache_history import Answered
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.routing.lost_tokens import LostCause
from cachefleet_core.pool.spec import PrefixCachePool, read_pool
from cachefleet_core.report_fields import HeldBlocks
from cachefleet_core.tenancy import TenantId, salt_digest, tenant_salt
from tests.controlplane.fleets import FakeLink, view
from tests.controlplane.frames import hello, state
from tests.core.invalid_pools import VALID, merged

SALT_KEY = b"s" * 32
POOL = "default/demo"
ACME = salt_digest(tenant_salt(SALT_KEY, TenantId("acme"), 1))


def pool(*contracts: dict[str, Any]) -> PrefixCachePool:
    named = {"metadata": {"name": "demo", "namespace": "default", "uid": "u", "generation": 1}}
    return read_pool(merged(merged(VALID, named), {"spec": {"tenancy": {"contracts": list(contracts)}}}))


CONTRACT = {"tenant": "acme", "share": 0.5, "hitObjective": {"ratio": 0.5, "minTokens": 10}}


class Watched:
    """A fleet with one worker, its contracts, and a clock at the beginning of a minute."""

    def __init__(self, *contracts: dict[str, Any]) -> None:
        self.now = 1_800_000_000.0
        self.fleet = Fleet(BlockIndex(), index_key=b"i" * 32, salt_key=SALT_KEY)
        self.fleet.update_pools([view(pool(*contracts), ["demo-0"])])
        self.settled = 0
        self.records = ContractRecords(self.fleet.view, self.fleet.models, settle=self._settle, clock=lambda: self.now)
        self.records.tick()

    def _settle(self) -> None:
        self.settled += 1

    def worker(self, epoch: str = "e1") -> Connection:
        connection = self.fleet.connect(FakeLink())
        self.fleet.hello(connection, hello(epoch=epoch))
        return connection

    def says(self, connection: Connection, *held: int) -> None:
        """The worker reports idle blocks and those evicted against acme's contract, or nothing of it."""
        told = {ACME: HeldBlocks(*held)} if held else {}
        self.fleet.receive(connection, msgspec.structs.replace(state(0), blocks_idle=30, held_by_salt=told))
        self.records.tick()

    def pass_minute(self) -> None:
        self.now += 60
        self.records.tick()

    def samples(self) -> dict[str, float]:
        registry = CollectorRegistry()
        registry.register(ContractCollector(self.records))
        found = {}
        for family in registry.collect():
            for sample in family.samples:
                found[" ".join([sample.name, *sample.labels.values()])] = sample.value
        return found


def test_minutes_are_judged_after_the_clock_was_set_back() -> None:
    watched = Watched(CONTRACT)
    watched.says(watched.worker(), 20, 7)
    watched.pass_minute()
    watched.now -= 3600
    watched.records.tick()
    watched.pass_minute()
    assert watched.samples()[f"cachefleet_contract_minutes_total {POOL} acme"] == 2


def test_a_kept_contract_is_met_and_evictions_break_it_for_their_minute() -> None:
    watched = Watched(CONTRACT)
    connection = watched.worker()
    watched.says(connection, 20, 7)
    watched.pass_minute()
    [shown] = watched.records.states()
    assert (shown.pool, shown.tenant, shown.met, shown.idle_blocks, shown.hour.met) == (POOL, "acme", True, 20, 1.0)
    watched.says(connection, 12, 15)
    watched.pass_minute()
    [shown] = watched.records.states()
    assert (shown.met, shown.reasons, shown.hour.evicted_blocks, shown.hour.met) == (False, ("evicted",), 8, 0.5)
    [finding] = contract_findings([shown])
    assert "running requests took 8 of its blocks" in finding.message
    assert "of the last hour it was met in 50.0%" in finding.message
    watched.pass_minute()
    assert watched.records.states()[0].met
    assert watched.samples() == {
        f"cachefleet_contract_met {POOL} acme": 1.0,
        f"cachefleet_contract_minutes_total {POOL} acme": 3.0,
        f"cachefleet_contract_met_minutes_total {POOL} acme": 2.0,
        f"cachefleet_contract_missed_minutes_total {POOL} acme not_enforced": 0.0,
        f"cachefleet_contract_missed_minutes_total {POOL} acme evicted": 1.0,
        f"cachefleet_contract_missed_minutes_total {POOL} acme hit_objective": 0.0,
        f"cachefleet_contract_evicted_blocks_total {POOL} acme": 8.0,
    }


def test_a_new_life_of_a_worker_counts_anew() -> None:
    watched = Watched(CONTRACT)
    watched.says(watched.worker(), 20, 7)
    again = watched.worker("e2")
    watched.says(again, 5, 0)
    watched.says(again, 5, 2)
    watched.pass_minute()
    assert watched.records.states()[0].hour.evicted_blocks == 2


def test_a_worker_that_says_nothing_of_it_does_not_enforce_it() -> None:
    watched = Watched(CONTRACT)
    watched.says(watched.worker())
    watched.pass_minute()
    [shown] = watched.records.states()
    assert shown.reasons == ("not_enforced",)
    [finding] = contract_findings([shown])
    assert "a worker does not enforce it" in finding.message


def test_without_a_worker_nothing_is_judged_or_found() -> None:
    watched = Watched(CONTRACT)
    watched.pass_minute()
    [shown] = watched.records.states()
    assert (shown.met, shown.hour.minutes) == (None, 0)
    assert not list(contract_findings([shown]))
    assert f"cachefleet_contract_met {POOL} acme" not in watched.samples()


def test_answers_of_the_tenant_in_the_pool_are_held_against_the_objective() -> None:
    watched = Watched(CONTRACT)
    watched.says(watched.worker(), 20, 0)
    missed = Answered(requests=1, prompt_tokens=100, served_tokens=40, lost={LostCause.EVICTED: 60})
    watched.records.answered(POOL, "acme", missed)
    for other in ((POOL, "umbrella"), ("default/other", "acme")):
        watched.records.answered(*other, Answered(requests=1, prompt_tokens=900, served_tokens=900))
    watched.pass_minute()
    [shown] = watched.records.states()
    assert (shown.reasons, shown.hit_ratio, shown.lost_cause) == (("hit_objective",), 0.4, "evicted")
    [finding] = contract_findings([shown])
    assert (
        "of 100 prompt tokens 40.0% came from cache, the objective is 50.0%, most of the rest was lost as evicted"
        in (finding.message)
    )
    assert watched.settled > 0


def test_a_contract_that_is_taken_away_is_forgotten_and_none_costs_nothing() -> None:
    watched = Watched(CONTRACT)
    watched.fleet.update_pools([view(pool(), ["demo-0"])])
    before = watched.settled
    watched.pass_minute()
    assert watched.records.states() == []
    assert watched.settled == before
    assert watched.samples() == {}
