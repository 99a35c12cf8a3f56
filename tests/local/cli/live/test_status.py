"""``cachefleet status``: healthy, or what is wrong and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cachefleet_local.cli.live.status import lines
from tests.local.cli.admin_api import TOKEN, AdminApi, environment, ran
from tests.local.cli.test_listing import POOL, item


def finding(severity: str, **more: str) -> dict[str, Any]:
    told = {
        "subject": "worker default/demo/demo-0#0",
        "reason": "ReportsStale",
        "message": "its blocks are not trusted",
        "action": "read the agent's log",
        "docs": "docs/troubleshooting.md#reports-are-stale",
    }
    return {"severity": severity} | told | more


@pytest.fixture
def api() -> AdminApi:
    api = AdminApi()
    api.items("pools", item(POOL))
    api.items("findings")
    return api


def test_a_healthy_fleet_is_one_screen_and_status_0(api: AdminApi, tmp_path: Path) -> None:
    with api.serving():
        status, out, err = ran("status", env=environment(api, tmp_path))
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "healthy: 1 pool, 1 of 2 workers ready"


def test_information_alone_is_no_illness(api: AdminApi, tmp_path: Path) -> None:
    api.items("findings", finding("info"))
    with api.serving():
        status, out, _ = ran("status", env=environment(api, tmp_path))
    assert status == 0
    assert "healthy: 1 pool" in out
    assert "INFO" in out


def test_what_is_wrong_is_told_with_what_to_do_and_status_1(api: AdminApi, tmp_path: Path) -> None:
    api.items("findings", finding("critical", subject="pool default/demo"), finding("warning"))
    with api.serving():
        env = environment(api, tmp_path)
        status, out, _ = ran("status", env=env)
        as_json, told, _ = ran("status", "-o", "json", env=env)
    assert status == as_json == 1
    assert "not healthy: 1 critical, 1 warning; 1 pool, 1 of 2 workers ready" in out
    assert "CRITICAL  pool default/demo: its blocks are not trusted (ReportsStale)" in out
    assert "          do: read the agent's log" in out
    assert "          see: docs/troubleshooting.md#reports-are-stale" in out
    assert "\x1b" not in out
    found = json.loads(told)
    assert (found["healthy"], len(found["findings"]), len(found["pools"])) == (False, 2, 1)


KNOWN = {
    "pool": "default/demo",
    "verdict": "worth",
    "words": "a third worker: 61 -> 74 % hits",
    "error": 0.012,
    "scaleIn": {"worker": "demo-1", "words": "demo-1 goes first: its cache is worth least"},
    "changes": [
        {
            "at": "2027-01-15T08:00:00Z",
            "words": "1 -> 2 workers: 61 % hits foretold, 58 % came (+3.0 points off)",
            "before": {"workers": 1},
            "foretold": {"workers": 2},
            "phase": "judged",
        }
    ],
    "desiredFit": {"minutes": 1440, "fittedMinutes": 1404, "fitted": 0.975},
}


def test_what_is_worth_doing_to_a_pool_and_which_worker_goes_first_are_told(api: AdminApi, tmp_path: Path) -> None:
    api.items("capacity", KNOWN, {"pool": "default/other", "verdict": "unknown", "words": "not known yet: no worker"})
    with api.serving():
        env = environment(api, tmp_path)
        status, out, _ = ran("status", env=env)
        _, as_json, _ = ran("status", "-o", "json", env=env)
    assert status == 0, "advice is no fault"
    assert out.splitlines()[-6:] == [
        "",
        "ADVICE    pool default/demo: a third worker: 61 -> 74 % hits (the curve's error: +1.2 points).",
        "          Scaled in, demo-1 goes first: its cache is worth least. Last change, 1 -> 2 workers: 61 %",
        "          hits foretold, 58 % came (+3.0 points off). The load fitted the desired workers in 98% of",
        "          1440 min",
        "ADVICE    pool default/other: not known yet: no worker",
    ]
    assert json.loads(as_json)["capacity"][0] == KNOWN


def test_an_older_control_plane_is_called_that(api: AdminApi, tmp_path: Path) -> None:
    del api.answers["findings"]
    with api.serving():
        status, out, _ = ran("status", env=environment(api, tmp_path))
    assert status == 1
    assert "the control plane is older than this command" in out


def test_the_replicas_of_a_local_fleet_are_named_and_one_that_is_away_is_a_fault(api: AdminApi, tmp_path: Path) -> None:
    api.answers["/readyz"] = {"ready": True}
    api.items("workers")
    with api.serving():
        (tmp_path / "secrets").mkdir()
        (tmp_path / "secrets" / "admin.token").write_text(TOKEN)
        replicas = {"controlplane": api.url, "controlplane-2": api.url}
        fleet = {"internal": api.url, "replicas": replicas}
        env = environment(api, tmp_path, CACHEFLEET_ADMIN_URL="", CACHEFLEET_ADMIN_TOKEN_FILE="")
        here = ("--data-dir", str(tmp_path))
        (tmp_path / "fleet.json").write_text(json.dumps(fleet))
        status, out, _ = ran("status", *here, env=env)
        assert (status, out.splitlines()[:3]) == (
            0,
            [
                "REPLICA         STATE  ADDRESS",
                f"controlplane    ready  {api.url}",
                f"controlplane-2  ready  {api.url}",
            ],
        )
        replicas["controlplane-2"] = "http://127.0.0.1:1"
        (tmp_path / "fleet.json").write_text(json.dumps(fleet))
        examined, _, told = ran("doctor", *here, env=env)
        status, out, _ = ran("status", "-o", "json", *here, env=env)
    assert examined == status == 1
    assert "replica controlplane-2: one that has ended is started again; else read controlplane-2.log" in told
    (fault,) = json.loads(out)["findings"]
    assert fault["message"] == "cannot reach the control plane at http://127.0.0.1:1: [Errno 111] Connection refused"
    assert [not one["problem"] for one in json.loads(out)["replicas"]] == [True, False]


def test_one_that_is_away_is_said_to_be(api: AdminApi, tmp_path: Path) -> None:
    status, out, err = ran("status", env=environment(api, tmp_path, CACHEFLEET_ADMIN_URL="http://127.0.0.1:1"))
    assert (status, out) == (1, "")
    assert "cannot reach the control plane at http://127.0.0.1:1" in err


@pytest.mark.parametrize("width", [60, 100, 200])
def test_long_messages_follow_the_terminal(width: int) -> None:
    long = finding("warning", message="word " * 60)
    assert all(len(line) <= width for line in lines([long], [], width=width, colour=False) if "see:" not in line)
