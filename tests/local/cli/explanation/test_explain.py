"""``cachefleet explain``: what a person reads, and what the command asks of the admin API."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace
from msgspec.structs import replace as replace_view

from cachefleet_controlplane.admin.decisions import decision_presenters
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.request.replay_eligibility import Unresumed
from cachefleet_controlplane.gateway.send.answers.usage import Usage
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.prompt_causes.mends import WHY, mend
from cachefleet_controlplane.prompt_causes.prompt_cause import NOT_MENDED, PromptCause
from cachefleet_controlplane.routing.cache_shortfall import Cause
from cachefleet_controlplane.routing.decision import Knowledge, Prompt, RoutingPolicy
from cachefleet_controlplane.routing.lost_tokens import LostCause
from cachefleet_controlplane.routing.reason_texts import CAUSES, REASONS, why_lost
from cachefleet_controlplane.routing.worth import Worth
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.decision_records import (
    AttemptRecord,
    DecisionRecord,
    LostRecord,
    PromptLossRecord,
    ShortfallRecord,
)
from cachefleet_core.engine.answer_replay import Unrecorded
from cachefleet_core.pool.policy import Isolation
from cachefleet_core.tenancy import TenantId
from cachefleet_local.cli.explanation.explain import UNRESUMED, explained
from cachefleet_local.cli.listing import Item
from tests.controlplane.store.conftest import make_record
from tests.local.cli.tenants.test_tenant_commands import served, token_of
from tests.local.test_command_line import run
from tests.reference.candidate import Candidate
from tests.reference.choice import decide

DOCS = Path(__file__).parents[4] / "docs" / "decisions.md"
Told = tuple[int, str, str]


def view(number: int, *, matched: int, queued: int, requests: int) -> Candidate:
    return Candidate(
        worker=f"agents-{number}",
        id=WorkerId(f"default/agents/agents-{number}#0"),
        pool="default/agents",
        url="u",
        matched_blocks=matched,
        report_age=0.1 + number / 5,
        queued_tokens=queued,
        tokens_per_second=8000.0,
        inter_token_seconds=0.02,
        batched_tokens=2048,
        blocks_total=4000,
        blocks_free=3000 - 1500 * (number == 1),
        blocks_blank=20,
        worth=Worth(eviction=0.09, requests_per_second=0.4, computed_per_second=2000.0, request_tokens=2500.0),
        requests=requests,
    )


CAUSES_OF_LOST = {
    LostCause.EVICTED: 512,
    LostCause.HELD_ELSEWHERE: 928,
    LostCause.FIRST_SEEN: 80,
    LostCause.LAST_BLOCK: 16,
}


def example() -> DecisionRecord:
    """Of a prompt that the busiest worker holds most of."""
    prompt = Prompt(tokens=4096, keys=bytes(8 * 256), block_size=16, max_tokens=256, knowledge=Knowledge.EXACT)
    views = [
        view(0, matched=250, queued=60_000, requests=9),
        view(1, matched=192, queued=0, requests=1),
        view(2, matched=0, queued=0, requests=0),
    ]
    decision = decide(prompt, views, RoutingPolicy.CACHE_AWARE, 1.0)
    usage = Usage(prompt_tokens=4096, completion_tokens=210, cached_tokens=2560)
    trace = DecisionTrace("5b2f0c7e9a1d", 1_767_225_600.0, "qwen3-32b", "/v1/chat/completions", decision, usage=usage)
    trace.ttft_seconds, trace.status = 0.231, 200
    trace.attempts.append(AttemptRecord("agents-1", "finished", 200, 3.84))
    trace.shortfall = ShortfallRecord(Cause.EVICTED, 512, "agents-1")
    trace.lost = tuple(LostRecord(cause, tokens) for cause, tokens in CAUSES_OF_LOST.items())
    trace.tenant, trace.isolation, trace.salt_version = TenantId("acme"), Isolation.PER_TENANT, 2
    trace.rung, trace.block_size, trace.keys, trace.single = "render", 16, prompt.keys, True
    assert trace.decision is not None
    return trace.made()


def item(record: DecisionRecord) -> Item:
    found: Item = decision_presenters.decision(record).model_dump(mode="json", by_alias=True)
    return found


def test_the_docs_show_this_example() -> None:
    assert f"```\n{explained(item(example()))}\n```" in DOCS.read_text()


def test_an_attempt_says_why_nobody_went_on_with_its_stream() -> None:
    broken = AttemptRecord("agents-1", "lost", 200, 3.84, unresumed="grammar")
    shown = explained(item(replace(example(), attempts=(broken,))))
    words = "a grammar beside a reasoning parser begins where the thought ends, which is not restored"
    assert f"agents-1, lost, status 200, 3.84 s, not resumed: grammar ({words})" in shown
    later = replace(broken, unresumed="of_a_later_version")
    shown = explained(item(replace(example(), attempts=(later,))))
    assert any(line.endswith("not resumed: of_a_later_version") for line in shown.splitlines())


def test_each_reason_why_nobody_goes_on_has_words_and_is_in_the_docs() -> None:
    codes = {str(one) for one in (*Unresumed, *Unrecorded)}
    assert set(UNRESUMED) == codes
    page = DOCS.read_text()
    assert not [code for code in codes if f"`{code}`" not in page]


def test_the_chosen_one_is_marked_and_the_reason_is_a_sentence() -> None:
    text = explained(item(example()))
    assert f"why        {REASONS['load_over_prefix']}" in text.splitlines()
    assert [line.split()[1] for line in text.splitlines() if line.startswith("*")] == ["agents-1"] * 2
    assert f"shortfall  512 tokens of agents-1 (evicted): {CAUSES['evicted']}" in text.splitlines()


def test_blocks_in_flight_are_shown_where_they_decided() -> None:
    prompt = Prompt(tokens=4096, keys=bytes(8 * 256), block_size=16, knowledge=Knowledge.EXACT)
    views = [view(0, matched=0, queued=0, requests=0), view(1, matched=0, queued=0, requests=1)]
    decision = decide(prompt, [views[0], replace_view(views[1], sent_blocks=32)], RoutingPolicy.CACHE_AWARE, 1.0)
    trace = DecisionTrace("5b2f0c7e9a1d", 1_767_225_600.0, "qwen3-32b", "/v1/chat/completions", decision)
    lines = explained(item(trace.made())).splitlines()
    assert "verdict    route to agents-1 of default/agents (cacheAware, prefix_in_flight)" in lines
    assert f"why        {REASONS['prefix_in_flight']}" in lines
    assert "predicted  512 tokens from cache, 512 of them from requests in flight there" in lines
    titles, chosen = next((line.split(), lines[at + 1]) for at, line in enumerate(lines) if "WORKER" in line)
    cells = dict(zip(titles, chosen.split()[1:], strict=False))
    assert (cells["WORKER"], cells["MATCHED"], cells["SENT"]) == ("agents-1", "0", "512")
    assert "SENT" not in explained(item(example()))


def test_tokens_that_no_cache_served_are_told_by_cause() -> None:
    _, _, told = explained(item(example())).partition("\n1,536 tokens of the prompt, not served from cache")
    rows = [f"{tokens:>3}  {cause:<14}  {why_lost(cause)}" for cause, tokens in CAUSES_OF_LOST.items()]
    assert told.splitlines()[1:6] == [*rows, ""]
    assert "not served from cache" not in explained(item(replace(example(), lost=())))


@pytest.mark.parametrize(
    ("loss", "place"),
    [
        (PromptLossRecord("time", 64, 32, "system", "system", 0), " (from token 32, system)"),
        (PromptLossRecord("tool_order", 64, 1_024, "tools", "system", 2), " (from token 1,024, tools 2)"),
        (PromptLossRecord("history_edited", 64, 0, "message", "user", 3), " (from token 0, message 3 of user)"),
        (
            PromptLossRecord("reasoning_dropped", 64, 48, "reasoning", "assistant", 4),
            " (from token 48, reasoning of assistant)",
        ),
        (PromptLossRecord("salt", 64, 0, "", "", 0), " (from token 0)"),
        (PromptLossRecord("new", 64), ""),
    ],
)
def test_first_seen_tokens_are_told_by_cause_place_and_mend(loss: PromptLossRecord, place: str) -> None:
    rest = PromptLossRecord("not_examined", 16)
    lines = explained(item(replace(example(), lost=(LostRecord("first_seen", 80, (loss, rest)),)))).splitlines()
    at = lines.index("80 tokens of the prompt, not served from cache as far as is told")
    cause = PromptCause(loss.cause)
    sentence = f" Mend: {mend(cause, loss.part)}." if mend(cause, loss.part) else ""
    assert bool(sentence) is (cause is not PromptCause.NEW)
    assert lines[at + 1 : at + 4] == [
        f"80  first_seen  {why_lost(LostCause.FIRST_SEEN)}",
        f"    64 {loss.cause}{place}: {WHY[cause]}{sentence}",
        f"    16 not_examined: {WHY[PromptCause.NOT_EXAMINED]}",
    ]


@pytest.mark.parametrize("cause", PromptCause)
def test_every_cause_has_a_sentence_and_each_that_can_be_mended_a_mend(cause: PromptCause) -> None:
    assert WHY[cause].endswith(".")
    assert bool(mend(cause, "system")) is (cause not in NOT_MENDED)


@pytest.mark.parametrize(("measured", "source"), [(False, "assumed"), (True, "measured")])
def test_what_is_loaded_is_among_the_costs_with_its_rate(*, measured: bool, source: str) -> None:
    record = example()
    chosen, *others = record.candidates
    below = replace(chosen, loaded_tokens=2048, loading_seconds=0.0512, loading_measured=measured)
    told = f"costs      loads 2,048 tokens in 0.051 s (40,000 tokens/s, {source}), evicts 960 tokens"
    assert told in explained(item(replace(record, candidates=(below, *others))))


def test_an_adapter_that_is_not_on_the_device_is_among_the_costs() -> None:
    record = example()
    chosen, *others = record.candidates
    told = "costs      loads the adapter onto a device that is full of others in 0.050 s (assumed), evicts 960 tokens"
    assert told in explained(item(replace(record, candidates=(replace(chosen, adapter_seconds=0.05), *others))))
    assert "adapter" not in explained(item(record))


def test_what_nobody_told_is_left_out_or_a_dash() -> None:
    bare = replace(make_record(1), rung="", tenant="", isolation="", salt_version=None, status=0, attempts=())
    lines = explained(item(bare)).splitlines()
    names = [line.split()[0] for line in lines if line]
    assert not {"answer", "attempt", "shortfall"} & set(names)
    assert "tenant     not recorded" in lines
    assert "knowledge  exact" in lines
    assert lines[-1] == "and 3 more"


def test_who_was_refused_has_no_worker() -> None:
    refused = replace(make_record(1), verdict="reject", reason="no_ready_worker", worker="", pool="", candidates=())
    lines = explained(item(refused)).splitlines()
    assert "verdict    reject (cacheAware, no_ready_worker)" in lines
    assert f"why        {REASONS['no_ready_worker']}" in lines


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CACHEFLEET_ADMIN_TOKEN_FILE", str(token_of(tmp_path)))
    with (
        closing(Database(f"sqlite:///{tmp_path / 'x.db'}", timeout_seconds=5)) as database,
        served(database) as address,
    ):
        monkeypatch.setenv("CACHEFLEET_ADMIN_URL", address)
        yield


@pytest.mark.usefixtures("environment")
def test_a_decision_is_fetched_by_its_id(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("explain", "d1", monkeypatch=monkeypatch, capsys=capsys)
    assert (status, out) == (0, explained(item(make_record(1, cached=48))) + "\n")
    for output, parse in (("json", json.loads), ("yaml", yaml.safe_load)):
        _, out, _ = run("explain", "d1", "-o", output, monkeypatch=monkeypatch, capsys=capsys)
        assert parse(out) == item(make_record(1, cached=48))
    status, _, err = run("explain", "none", monkeypatch=monkeypatch, capsys=capsys)
    assert status == 1
    assert "no such decision" in err


@pytest.mark.usefixtures("environment")
def test_a_body_is_explained_from_a_file_and_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = b'{"prompt": "x", "model": "demo"}'
    (tmp_path / "body.json").write_bytes(body)
    wanted = explained(item(make_record(7))) + "\n"
    given = ["explain", "--tenant", "acme", "--body"]
    assert run(*given, str(tmp_path / "body.json"), monkeypatch=monkeypatch, capsys=capsys) == (0, wanted, "")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))
    assert run(*given, "-", monkeypatch=monkeypatch, capsys=capsys) == (0, wanted, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "one of them"),
        (["d1", "--body", "x"], "one of them"),
        (["d1", "--tenant", "acme"], "--tenant goes with --body"),
        (["--body", "nowhere.json"], "cannot read nowhere.json"),
    ],
)
def test_bad_input_is_said_before_anybody_is_asked(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run("explain", *arguments, monkeypatch=monkeypatch, capsys=capsys)
    assert (status, out) == (2, "")
    assert said in err
