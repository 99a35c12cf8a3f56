"""Records, and each implementation of the repository."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.decision_records import (
    AttemptRecord,
    CandidateRecord,
    DecisionRecord,
    LostRecord,
    ShortfallRecord,
)
from cachefleet_controlplane.store.decision_repository import DecisionRepository, SqlDecisions
from tests.controlplane.conftest import KINDS, new_database
from tests.fakes.decisions import InMemoryDecisions

RING = 10
CANDIDATE = CandidateRecord(
    worker="default/demo/demo-0#0",
    pool="default/demo",
    matched_blocks=4,
    predicted_tokens=64,
    expected_tokens=64,
    queued_tokens=0,
    inflight_tokens=0,
    uncached_tokens=36,
    evicted_tokens=0,
    tokens_per_second=1000.0,
    inter_token_seconds=0.02,
    batched_tokens=2048,
    requests=1,
    seconds=0.056,
    report_age=None,
    fits=True,
)
MakeRecord = Callable[..., DecisionRecord]


@pytest.fixture(params=["memory", *KINDS])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DecisionRepository]:
    if request.param == "memory":
        yield InMemoryDecisions(max_rows=RING)
        return
    with closing(Database(new_database(request.param, request, tmp_path), timeout_seconds=10)) as database:
        found = SqlDecisions(database, max_rows=RING)
        found.open()
        yield found


@pytest.fixture
def make() -> MakeRecord:
    return make_record


def make_record(number: int, *, model: str = "demo", cached: int | None = None) -> DecisionRecord:
    return DecisionRecord(
        id=f"d{number}",
        at=1_700_000_000.25 + number,
        model=model,
        pool="default/demo",
        endpoint="chat/completions",
        policy="cacheAware",
        verdict="route",
        reason="least seconds",
        worker="default/demo/demo-0#0",
        knowledge="exact",
        prompt_tokens=100,
        predicted_tokens=64,
        cached_tokens=cached,
        status=200,
        attempts=(AttemptRecord("default/demo/demo-0#0", "answered", 200, 0.5),),
        candidates=(CANDIDATE,),
        candidates_left_out=3,
        tenant="acme",
        isolation="PerTenant",
        salt_version=2,
        rung="render",
        shortfall=None if cached is None or cached >= 64 else ShortfallRecord("evicted", 64 - cached, "demo-0"),
        lost=() if cached is None else (LostRecord("evicted", max(0, 96 - cached)), LostRecord("last_block", 4)),
    )
