"""``cachefleet capacity``: sizes, tenants, advice, and what a simulation of it gave."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_core.fleet_status.capacity_facts import (
    MORE_WORKERS,
    WORTH,
    AdviceFacts,
    CapacityFacts,
    ConfirmationFacts,
    SizeFacts,
    TenantCurveFacts,
)
from tests.local.cli.tenants.test_tenant_commands import served, token_of
from tests.local.test_command_line import run

Told = tuple[int, str, str]
TODAY = SizeFacts(workers=2, budget_mib=8192, hit_ratio=0.61, computed_tokens_per_second=3900.0)
THIRD = SizeFacts(workers=3, budget_mib=8192, hit_ratio=0.74, computed_tokens_per_second=2600.0)
HALF = SizeFacts(workers=2, budget_factor=0.5, budget_mib=4096, hit_ratio=0.41, computed_tokens_per_second=5900.0)
ADVICE = AdviceFacts(action=MORE_WORKERS, worth=True, words="a third worker: 61 -> 74 % hits", size=THIRD, points=13.0)
KNOWN = CapacityFacts(
    pool="ns/p",
    verdict=WORTH,
    words=ADVICE.words,
    error=-0.014,
    now=TODAY,
    by_workers=(TODAY, THIRD),
    by_budget=(HALF, TODAY),
    by_tenant=(
        TenantCurveFacts(tenant="acme", requests=9, served_ratio=0.6, by_workers=(0.64, 0.77), by_budget=(0.4, 0.64)),
    ),
    advice=(ADVICE,),
)
CONFIRMED = ConfirmationFacts(
    at=datetime(2027, 1, 15, tzinfo=UTC),
    words="simulated with the last 500 requests: 61.0 -> 73.1 % hits, +12.1 points; the curve says +13.0",
    requests=500,
    today=0.61,
    hit_ratio=0.731,
    points=12.1,
    error=0.9,
)
TABLE = """\
POOL  WORKERS  BUDGET MIB  SIZE   HIT RATIO  COMPUTED/S
ns/p        2       8,192  today       0.61       3,900
ns/p        3       8,192  -           0.74       2,600
ns/p        2       4,096  -           0.41       5,900

ns/p: a third worker: 61 -> 74 % hits (the curve's error: -1.4 points)
  worth it: a third worker: 61 -> 74 % hits
"""


class Plane:
    """What the control plane knows of capacities; remembers what was to be confirmed."""

    def __init__(self) -> None:
        self.known: tuple[CapacityFacts, ...] = (KNOWN,)
        self.asked: list[tuple[str | None, str | None, int]] = []

    def capacities(self) -> tuple[CapacityFacts, ...]:
        return self.known

    async def confirm(self, pool: str | None, action: str | None, requests: int) -> CapacityFacts:
        self.asked.append((pool, action, requests))
        if not self.known:
            raise ApiError(404, "there is no pool; pools: none", param="pool")
        return replace(KNOWN, advice=(replace(ADVICE, confirmed=CONFIRMED),))


@pytest.fixture
def plane() -> Plane:
    return Plane()


@pytest.fixture
def capacity(
    tmp_path: Path, plane: Plane, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Told]]:
    parts = {"capacities": plane.capacities, "confirm": plane.confirm}
    with (
        closing(Database(f"sqlite:///{tmp_path / 'x.db'}", timeout_seconds=0.5)) as database,
        served(database, **parts) as url,
    ):
        given = ("--url", url, "--token-file", str(token_of(tmp_path)))
        yield lambda *arguments: run("capacity", *arguments, *given, monkeypatch=monkeypatch, capsys=capsys)


def test_sizes_and_what_is_worth_doing(capacity: Callable[..., Told]) -> None:
    assert capacity() == (0, TABLE, "")
    assert capacity("--pool", "ns/other") == (0, "", "no pools: see cachefleet pools\n")


def test_a_wide_table_has_tenants(capacity: Callable[..., Told]) -> None:
    _, out, _ = capacity("-o", "wide")
    lines = out.splitlines()[1:4]
    assert [line.rsplit("  ", 1)[1] for line in lines] == ["acme 0.64", "acme 0.77", "acme 0.40"]


def test_json_is_the_answer_and_names_are_pools(capacity: Callable[..., Told]) -> None:
    [one] = json.loads(capacity("-o", "json")[1])
    assert (one["byTenant"][0]["tenant"], one["advice"][0]["confirmed"]) == ("acme", None)
    assert capacity("-o", "name")[1] == "ns/p\n"


def test_an_advice_is_confirmed_by_a_simulation(capacity: Callable[..., Told], plane: Plane) -> None:
    status, out, err = capacity("--confirm", "--pool", "ns/p", "--last", "500")
    assert (status, out, err) == (0, f"{TABLE}    {CONFIRMED.words}\n", "")
    assert plane.asked == [("ns/p", None, 500)]


def test_a_pool_of_which_nothing_is_known_says_why(capacity: Callable[..., Told], plane: Plane) -> None:
    plane.known = (CapacityFacts(pool="ns/p", words="not known yet: no worker is ready"),)
    assert capacity() == (0, "ns/p: not known yet: no worker is ready\n", "")


def test_what_cannot_be_confirmed_is_said(capacity: Callable[..., Told], plane: Plane) -> None:
    plane.known = ()
    status, out, err = capacity("--confirm")
    assert (status, out) == (1, "")
    assert "there is no pool; pools: none" in err
    assert capacity("--last", "0")[0] == 2
