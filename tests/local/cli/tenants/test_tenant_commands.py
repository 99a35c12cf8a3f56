"""``cachefleet tenants`` against the real admin API over a real SQLite file."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import yaml

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.decision_log import DecisionLog
from cachefleet_controlplane.store.tenant_records import UsageRecord
from cachefleet_controlplane.store.usage_log import SqlUsage, UsageLog
from cachefleet_core.fleet_status.tenant_limits import BUDGET, SPEND, Limit
from cachefleet_core.tenancy import TenantId
from cachefleet_local import __main__ as cli
from cachefleet_local.cli.listing import Output, listing
from cachefleet_local.cli.output.columns import USAGE
from tests.controlplane.admin.conftest import NOW, TOKEN
from tests.controlplane.admin.served_admin import admin_over, listening, mounted
from tests.controlplane.store.conftest import make_record
from tests.fakes.decisions import InMemoryDecisions

Told = tuple[int, str, str]
Command = Callable[..., Told]


@contextmanager
def served(database: Database, **parts: Any) -> Iterator[str]:
    """The admin API in a thread of its own, as commands have an event loop of theirs; ``parts`` are more of it."""
    begun, stop, address = Event(), Event(), []

    async def serve() -> None:
        usage = UsageLog(SqlUsage(database), metrics=Metrics(), wall_clock=lambda: NOW)
        for tenant in ("acme", "umbrella"):
            used = UsageRecord(hour=int(NOW), tenant=TenantId(tenant), model="m", requests=1, prompt_tokens=9)
            usage.record(replace(used, cached_tokens=4, charged=12_345_000_000))
        decisions = DecisionLog(InMemoryDecisions(max_rows=9), metrics=Metrics())
        decisions.record(make_record(1, cached=48))
        admin = admin_over(database, decisions=decisions, usage=usage, **parts)
        async with listening(mounted(admin)) as port:
            address.append(f"http://127.0.0.1:{port}")
            begun.set()
            await asyncio.to_thread(stop.wait)

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert begun.wait(60)
        yield address[0]
    finally:
        stop.set()
        thread.join()


def token_of(folder: Path) -> Path:
    """A file with the token that is let in."""
    file = folder / "token"
    file.write_text(TOKEN)
    return file


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    monkeypatch.setenv("CACHEFLEET_ADMIN_TOKEN_FILE", str(token_of(tmp_path)))

    def run(*arguments: str) -> Told:
        monkeypatch.setattr(sys, "argv", ["cachefleet", "tenants", *arguments])
        status = 0
        try:
            cli.main()
        except SystemExit as end:
            status = int(end.code or 0)
        told = capsys.readouterr()
        return status, told.out, told.err

    with (
        closing(Database(f"sqlite:///{tmp_path / 'x.db'}", timeout_seconds=5)) as database,
        served(database) as address,
    ):
        monkeypatch.setenv("CACHEFLEET_ADMIN_URL", address)
        yield run


def row(table: str, number: int = 1) -> list[str]:
    return table.splitlines()[number].split()


def test_a_table_tells_what_is_set_of_limits_weight_and_trust(command: Command) -> None:
    command("create", "acme", "--limit", "tokens-per-day=7", "--weight", "300", "--trusted")
    titles, cells = map(str.split, command("show", "acme")[1].splitlines()[:2])
    assert ("TOKENS/DAY" in titles, "SPEND/DAY" in titles) == (True, False)
    told = dict(zip(titles[:-4], cells, strict=False))
    assert (told["WEIGHT"], told["PRIORITY"]) == ("300", "50")
    assert {"7", "yes"} < set(cells)
    command("keys", "create", "acme", "--model", "m-*")
    assert command("keys", "list", "acme")[1].split()[-1] == "m-*"


def test_without_a_commands_name_the_list_has_the_form_asked_for(command: Command) -> None:
    command("create", "acme")
    assert command("-o", "name") == (0, "acme\n", "")
    status, out, err = command("-o", "json", "list")
    assert (status, out) == (2, "")
    assert "'--output': must stand after the name of the command" in err


def test_a_tenant_is_made_listed_changed_and_deleted(command: Command) -> None:
    status, out, _ = command("create", "acme", "--priority", "10", "--requests-at-once", "3")
    assert status == 0
    assert row(out) == ["acme", "10", "3", "-", "1", "enabled", "2027-01-15", "08:00:00"]
    _, out, _ = command("set", "acme", "--requests-at-once", "0", "--tokens-per-minute", "500", "--disabled")
    assert row(out) == ["acme", "10", "-", "500", "1", "disabled", "2027-01-15", "08:00:00"]
    _, out, _ = command("set", "acme", "--enabled", "--salt-version", "2", "--priority", "0", "-o", "json")
    changed = json.loads(out)
    assert (changed["disabled"], changed["saltVersion"], changed["priority"]) == (False, 2, 0)
    assert changed["trusted"] is False
    for option, trusted in (("--trusted", True), ("--untrusted", False)):
        assert json.loads(command("set", "acme", option, "-o", "json")[1])["trusted"] is trusted
    limits = ("requests-per-minute=60", "tokens-per-day=7000000000", "spend-per-month=12.5")
    set_ = json.loads(command("set", "acme", *(f"--limit={one}" for one in limits), "-o", "json")[1])
    assert (set_["requestsPerMinute"], set_["tokensPerDay"], set_["spendPerMonth"]) == (60, 7_000_000_000, 12.5)
    none = ("--limit", "requests-per-minute=0", "--limit", "tokens-per-day=0", "--limit", "spend-per-month=0")
    assert json.loads(command("set", "acme", *none, "-o", "json")[1]) == changed | {"trusted": False}
    _, out, _ = command("list", "--output", "yaml")
    assert yaml.safe_load(out) == [changed]
    assert command("delete", "acme", "--yes") == (0, "acme: deleted\n", "")


def test_every_limit_is_set_shown_and_taken_away_alike(command: Command) -> None:
    given = {limit: 2.5 if limit in SPEND else 7 for limit in Limit}
    options = [f"--limit={limit.option}={most}" for limit, most in given.items()]
    made = json.loads(command("create", "acme", *options, "-o", "json")[1])
    assert {limit: made[limit.field] for limit in Limit} == given
    titles = command("show", "acme", "-o", "wide")[1].splitlines()[0]
    assert all(title in titles for title in ("CACHED/DAY", "OUTPUT/MONTH", "UNCACHED/MIN", "SPEND/MIN", "REQUESTS/DAY"))
    key = json.loads(command("keys", "create", "acme", *(f"--limit={one.option}=2" for one in BUDGET), "-o", "json")[1])
    assert {key[limit.field] for limit in BUDGET} == {2}
    lifted = command("set", "acme", *(f"--limit={limit.option}=0" for limit in Limit), "-o", "json")[1]
    assert {json.loads(lifted)[limit.field] for limit in Limit} == {None}


def test_the_last_tenant_leaves_an_empty_list(command: Command) -> None:
    command("create", "acme")
    assert command("delete", "acme", "--yes") == (0, "acme: deleted\n", "")
    assert command("list", "-o", "json")[1].strip() == "[]"
    status, out, err = command("list")
    assert (status, out) == (0, "")
    assert "no tenants: " in err
    assert "cachefleet tenants create NAME" in err


def test_the_list_needs_no_command_and_options_may_stand_before_one(command: Command, tmp_path: Path) -> None:
    command("create", "acme")
    assert command() == command("list")
    token = ("--token-file", str(tmp_path / "token"))
    assert command(*token) == command(*token, "list") == command("list")
    assert command(*token, "keys", "list", "acme")[0] == 0
    status, _, err = command("--data-dir", str(tmp_path / "none"), "list")
    assert status == 2
    assert f"no fleet runs on the data folder {tmp_path / 'none'}" in err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "status", "left"), [("y\n", 0, 0), ("n\n", 1, 1), ("\n", 1, 1)])
def test_a_deletion_is_asked_about_on_a_terminal(
    command: Command, monkeypatch: pytest.MonkeyPatch, typed: str, status: int, left: int
) -> None:
    command("create", "acme")
    command("keys", "create", "acme")
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    found, out, err = command("delete", "acme")
    assert (found, out) == (status, "" if left else "acme: deleted\n")
    assert "delete tenant acme and its 1 keys?" in err
    assert len(json.loads(command("list", "-o", "json")[1])) == left


def test_where_nobody_can_be_asked_a_deletion_needs_yes(command: Command) -> None:
    command("create", "acme")
    status, out, err = command("delete", "acme")
    assert (status, out) == (2, "")
    assert "say --yes" in err
    assert row(command("list")[1])[0] == "acme"


def test_names_alone_can_be_listed(command: Command) -> None:
    for name in ("acme", "umbrella"):
        command("create", name)
    assert command("list", "-o", "name")[1].splitlines() == ["acme", "umbrella"]
    assert "TRUSTED" in command("list", "-o", "wide")[1].splitlines()[0]


def test_a_key_is_shown_once_and_can_be_taken_from_json(command: Command) -> None:
    command("create", "acme")
    status, out, err = command("keys", "create", "acme", "--expires", "2027-01-31", "-o", "json")
    made = json.loads(out)
    assert (status, err.splitlines()[0]) == (0, "keep the key: it is shown this once")
    assert (made["key"][:3], made["expires"]) == ("cf-", "2027-01-31T00:00:00Z")
    _, out, _ = command("keys", "list", "acme")
    assert row(out) == [made["id"], made["hint"], "active", "2027-01-15", "08:00:00", "2027-01-31", "00:00:00", "-"]
    assert made["key"] not in out


def test_keys_are_rotated_and_revoked(command: Command) -> None:
    command("create", "acme")
    old = json.loads(command("keys", "create", "acme", "-o", "json")[1])
    _, out, _ = command("keys", "rotate", "acme", "--grace", "3600", "--expires", "2027-02-01T00:00:00+01:00")
    key, key_id, *expires = row(out)
    assert key.startswith("cf-")
    assert expires == ["2027-01-31", "23:00:00"]
    listed = json.loads(command("keys", "list", "acme", "-o", "json")[1])
    ends = {one["id"]: one["expires"] for one in listed}
    assert ends == {old["id"]: "2027-01-15T09:00:00Z", key_id: "2027-01-31T23:00:00Z"}
    status, out, _ = command("keys", "revoke", "acme", key_id)
    assert (status, row(out)[:3]) == (0, [key_id, key[:9], "revoked"])


def test_a_key_may_be_for_some_models_and_its_successor_is_too(command: Command) -> None:
    command("create", "acme")
    made = json.loads(command("keys", "create", "acme", "--model", "qwen", "--model", "gpt-*", "-o", "json")[1])
    assert made["models"] == ["qwen", "gpt-*"]
    assert json.loads(command("keys", "rotate", "acme", "-o", "json")[1])["models"] == ["qwen", "gpt-*"]
    assert json.loads(command("keys", "rotate", "acme", "--model", "*", "-o", "json")[1])["models"] == ["*"]
    assert "qwen, gpt-*" in command("keys", "list", "acme", "-o", "wide")[1]
    status, _, err = command("keys", "create", "acme", "--model", "two words")
    assert (status, "body.models" in err) == (2, True)


def test_a_key_may_have_a_budget_of_its_own(command: Command) -> None:
    command("create", "acme")
    limits = ("--limit", "tokens-per-day=5000", "--limit", "spend-per-month=2.5")
    made = json.loads(command("keys", "create", "acme", *limits, "-o", "json")[1])
    assert (made["tokensPerDay"], made["spendPerMonth"], made["tokensPerMonth"]) == (5000, 2.5, None)
    assert json.loads(command("keys", "rotate", "acme", "-o", "json")[1])["tokensPerDay"] == 5000
    rotated = command("keys", "rotate", "acme", "--limit", "tokens-per-day=0", "-o", "json")[1]
    assert json.loads(rotated)["tokensPerDay"] is None
    assert "5000" in command("keys", "list", "acme", "-o", "wide")[1]
    for wrong in ("requests-per-minute=5", "tokens-per-day=-1", "spend-per-day=x"):
        status, _, err = command("keys", "create", "acme", "--limit", wrong)
        assert (status, wrong in err) == (2, True)


def test_a_gateway_whose_keys_were_deleted_is_opened_by_saying_so(command: Command) -> None:
    command("create", "acme")
    assert row(command("access")[1]) == ["served", "open"]
    command("keys", "create", "acme")
    assert row(command("access")[1]) == ["refused", "keys"]
    status, out, err = command("open")
    assert (status, out) == (1, "")
    assert "1 API keys" in err
    _, _, err = command("delete", "acme", "--yes")
    assert err.startswith("no key is left: all requests are refused until there is one")
    assert "cachefleet tenants open" in err
    assert row(command("access")[1]) == ["refused", "keyed"]
    status, out, _ = command("open")
    assert (status, row(out)) == (0, ["served", "open"])


def test_usage_is_listed_by_tenant_and_time(command: Command) -> None:
    _, out, _ = command("usage", "--to", "2027-01-15T09:00:00", "--tenant", "acme")
    assert row(out) == ["2027-01-15T08", "acme", "m", "1", "9", "4", "5", "0", "0.0123", "-", "-"]
    assert row(command("usage", "--by", "day", "--tenant", "acme", "--to", "2027-01-16")[1])[:3] == [
        "2027-01-15",
        "acme",
        "m",
    ]
    span = ("--from", "2027-01-15", "--to", "2027-01-16", "-o", "json")
    assert [one["tenant"] for one in json.loads(command("usage", *span)[1])] == ["acme", "umbrella"]
    status, out, err = command("usage", *span, "--limit", "1")
    assert (status, len(json.loads(out)), err) == (0, 1, "there is more; these are the first 1 rows\n")


@pytest.mark.parametrize(
    ("amount", "told"), [("0", "-"), ("0.00002", "<0.0001"), ("0.0001", "0.0001"), ("7", "7.0000")]
)
def test_an_amount_is_rounded_but_never_to_nothing(amount: str, told: str) -> None:
    used = dict.fromkeys(("hour", "tenant", "model", "requests", "promptTokens", "cachedTokens"), "x")
    used |= dict.fromkeys(("computedTokens", "completionTokens"), "x")
    assert listing([used | {"charged": amount}], USAGE, Output.TABLE).split()[-3] == told


def test_what_tenants_have_of_the_idle_caches_is_listed(command: Command) -> None:
    _, out, _ = command("cache")
    assert [row(out, number)[1:] for number in (1, 2, 3)] == [
        ["acme", "25%", "30", "2"],
        ["(others)", "100%", "10", "1"],
        ["acme", "100%", "5", "1"],
    ]
    assert len(json.loads(command("cache", "--pool", "default/other", "-o", "json")[1])) == 1


def test_cache_contracts_are_listed_met_or_not(command: Command) -> None:
    _, out, _ = command("contracts")
    assert row(out, 1)[1:] == ["acme", "30%", "30", "-", "-", "no", "0.50", "0.50", "0.50", "evicted"]
    assert row(out, 2)[1:] == ["umbrella", "100%", "0", "-", "-", "-", "-", "-", "-", "-"]
    assert len(json.loads(command("contracts", "--pool", "default/other", "-o", "json")[1])) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("set", "nobody", "--priority", "1"), 1, "there is no tenant nobody"),
        (("set", "acme", "--limit", "tokens-per-week=1"), 2, "NAME is one of requests-at-once, requests-per-minute, "),
        (("set", "acme", "--limit", "tokens-per-day=1.5"), 2, "a whole number from 0 (no limit) to 1000000000000000"),
        (("set", "acme", "--limit", "cached-tokens-per-minute=2147483648"), 2, "from 0 (no limit) to 2147483647"),
        (("set", "acme", "--tokens-per-minute", "2147483648"), 2, "'--tokens-per-minute': Input should be less than"),
        (("set", "acme", "--limit", "spend-per-day=1e7"), 2, "a number from 0 (no limit) to 1000000"),
        (("set", "acme", "--limit", "spend-per-day=nan"), 2, "a number from 0 (no limit) to 1000000"),
        (("keys", "create", "nobody"), 1, "there is no tenant nobody"),
        (("keys", "revoke", "acme", "k1"), 1, "tenant acme has no key k1"),
        (("create", "acme"), 1, "acme exists already"),
        (("create", "a/b"), 2, "body.name: "),
        (("set", "a/b", "--priority", "1"), 1, "there is no /admin/v1/tenants/a/b here"),
        (("keys", "create", "acme", "--expires", "2020-01-01"), 2, "body.expires must be in the future"),
        (("create", "b", "--priority", "101"), 2, "--priority"),
        (("usage", "--from", "yesterday"), 2, "--from"),
        (("keys", "rotate", "acme", "--grace", "1e9"), 2, "body.graceSeconds: "),
    ],
)
def test_what_goes_wrong_is_said_with_the_status_for_it(
    command: Command, arguments: tuple[str, ...], status: int, said: str
) -> None:
    command("create", "acme")
    ended, out, err = command(*arguments)
    assert (ended, out) == (status, "")
    assert said in err


def test_a_tenant_is_shown_with_its_keys(command: Command) -> None:
    said = command("create", "acme", "--priority", "10")[2]
    assert "it can do nothing until it has a key; make one with: cachefleet tenants keys create acme" in said
    status, out, err = command("show", "acme")
    assert (status, row(out)[:2]) == (0, ["acme", "10"])
    assert "no keys: make one with: cachefleet tenants keys create acme" in err
    key = json.loads(command("keys", "create", "acme", "-o", "json")[1])
    lines = command("show", "acme")[1].splitlines()
    assert (lines[2], lines[4].split()[:3]) == ("", [key["id"], key["key"][: len(lines[4].split()[1])], "active"])
    told = json.loads(command("show", "acme", "-o", "json")[1])
    assert (told["name"], [one["id"] for one in told["keys"]]) == ("acme", [key["id"]])
    assert command("show", "nobody")[0] == 1


@pytest.mark.parametrize("verb", ["create", "rotate"])
def test_the_first_key_says_that_everybody_is_asked_for_one_now(command: Command, verb: str) -> None:
    command("create", "acme")
    command("create", "umbrella")
    status, _, said = command("keys", verb, "acme")
    assert status == 0
    assert "this is the first key: from now on every request is asked for one" in said
    assert "first key" not in command("keys", verb, "umbrella")[2]
