"""``cachefleet simulate``: the table that a person reads, and what the command asks of the admin API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cachefleet_controlplane.simulation.fleet_model import Changes
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.simulator import WantedSimulation
from cachefleet_controlplane.simulation.workload import TraceLine
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.wire.errors import ApiError
from tests.controlplane.admin.test_simulate_routes import LINE, TOLD, Simulating
from tests.local.cli.tenants.test_tenant_commands import served, token_of
from tests.local.test_command_line import run

Told = tuple[int, str, str]
TABLE = """\
                   HAPPENED  TODAY, SIMULATED  CHANGED, SIMULATED
policy                    -        cacheAware         leastLoaded
workers                   -                 4                   4
budget, MiB               -             1,024               8,192
requests                 10                10                  10
hit ratio             40.0%             41.0%               60.0%
prompt tokens         1,000             1,000               1,000
recomputed tokens       600               590                 400
queue p50            0.25 s            0.25 s              0.25 s
queue p99             1.5 s             1.5 s               1.5 s
first token p50       0.5 s             0.5 s               0.5 s
first token p95           -                 -                   -
refused                   -                 0                   0
preemptions               -                 0                   0
ns/p, simulated in 0.5 s: hit ratio +19.0 points; the simulation is off by +1.0 points
"""


@pytest.fixture
def simulating() -> Simulating:
    return Simulating()


@pytest.fixture
def simulate(
    tmp_path: Path, simulating: Simulating, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Told]]:
    with (
        closing(Database(f"sqlite:///{tmp_path / 'x.db'}", timeout_seconds=0.5)) as database,
        served(database, simulate=simulating) as url,
    ):
        given = ("--url", url, "--token-file", str(token_of(tmp_path)))
        yield lambda *arguments: run("simulate", *arguments, *given, monkeypatch=monkeypatch, capsys=capsys)


def test_a_column_for_each(simulate: Callable[..., Told], simulating: Simulating) -> None:
    given = ("--budget", "8192", "--workers", "6", "--policy", "leastLoaded", "--pool", "ns/p", "--last", "10")
    status, out, err = simulate(*given)
    assert (status, out, err) == (0, TABLE, "")
    changes = Changes(policy="leastLoaded", budget_mib=8192, workers=6)
    assert simulating.asked == [WantedSimulation(pool="ns/p", recorded=10, changes=changes)]


@pytest.mark.parametrize(("blocks", "said"), [(4096, False), (2048, True)])
def test_a_budget_beyond_the_cache_is_said_to_bound_nothing(
    simulate: Callable[..., Told], simulating: Simulating, *, blocks: int, said: bool
) -> None:
    setup = Setup(blocks=blocks, budget_blocks=4096)
    simulating.told = replace(TOLD, changed=replace(TOLD.changed, setup=setup))
    _, out, err = simulate("--budget", "8192", "--last", "10")
    note = (
        "note: a budget of 8,192 MiB is 4,096 blocks, and a worker's whole cache has 2,048 (4,096 MiB): it bounds "
        "nothing, more is cached only with more device memory or workers\n"
    )
    assert (out, err) == (TABLE, note if said else "")


def test_fewer_requests_than_were_asked_for_are_said_with_the_reason(simulate: Callable[..., Told]) -> None:
    assert simulate("--last", "1000")[2] == (
        "note: these are all 10 requests of the 1,000 asked for that can be replayed: block keys are kept in memory, "
        "for answers since the control plane started, and are not among stored decisions\n"
    )


def test_a_trace_has_no_past(simulate: Callable[..., Told], simulating: Simulating, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps({**LINE, "timestamp": at, "more": 1}) + "\n\n" for at in range(3)))
    status, out, _ = simulate("--trace", str(file), "--last", "2", "--block-tokens", "32")
    assert status == 0
    assert "HAPPENED" not in out
    lines = tuple(TraceLine(timestamp=at, input_length=64, output_length=4, hash_ids=(1, 2)) for at in range(2))
    assert simulating.asked == [WantedSimulation(trace=lines, trace_block=32)]


def test_json_is_the_answer(simulate: Callable[..., Told]) -> None:
    status, out, _ = simulate("--last", "5", "-o", "json")
    assert status == 0
    assert json.loads(out)["changed"]["recomputedTokens"] == 400


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no requests"),
        ("{", "line 1: not JSON"),
        ('{"timestamp": 1}', "line 1: needs timestamp, input_length, output_length, and hash_ids"),
        ("[]", "line 1: needs"),
    ],
)
def test_what_is_no_trace(
    simulate: Callable[..., Told], simulating: Simulating, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(text)
    status, out, err = simulate("--trace", str(file))
    assert (status, out) == (2, "")
    assert words in err
    assert simulate("--trace", str(tmp_path / "none"))[0] == 2
    assert not simulating.asked


def test_a_refused_request_of_a_trace_is_named_by_its_line(
    simulate: Callable[..., Told], simulating: Simulating, tmp_path: Path
) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text("\n\n".join(json.dumps(line) for line in (LINE, {**LINE, "hash_ids": [1, -2]})))
    status, _, err = simulate("--trace", str(file))
    assert status == 2
    assert err.splitlines() == [f"{file}, line 3: hash_ids.1: Input should be greater than or equal to 0"]
    assert not simulating.asked


def test_a_refusal_is_told(simulate: Callable[..., Told], simulating: Simulating) -> None:
    simulating.error = ApiError(409, "another simulation is running: try again when it is over")
    status, _, err = simulate()
    assert status == 1
    assert "another simulation is running" in err
