"""``cachefleet doctor``: the findings of the control plane, and what only a closer look shows."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from cachefleet_core.report_frames import Capability
from cachefleet_local.cli.doctor.fleet_checks import closer
from tests.local.cli.admin_api import AdminApi, environment, ran
from tests.local.cli.live.test_status import finding
from tests.local.cli.test_listing import POOL, WORKER, item

CERTIFICATE = {"model": "default/tiny", "profile": "sha256:0123", "certified": False, "reason": "it differs"}


@pytest.fixture
def api() -> AdminApi:
    api = AdminApi()
    api.items("pools", item(POOL))
    api.items("workers", item(WORKER))
    api.items("findings")
    return api


def test_a_sound_fleet_has_no_fault(api: AdminApi, tmp_path: Path) -> None:
    with api.serving():
        assert ran("doctor", env=environment(api, tmp_path)) == (0, "", "no fault was found\n")


@pytest.mark.parametrize(("severity", "status"), [("critical", 1), ("warning", 1), ("info", 0)])
def test_findings_are_told_with_what_to_do(api: AdminApi, tmp_path: Path, severity: str, status: int) -> None:
    api.items("findings", finding(severity))
    with api.serving():
        ended, out, err = ran("doctor", env=environment(api, tmp_path))
    assert ended == status
    assert out.splitlines()[1].split()[:2] == [severity, "worker"]
    assert "worker default/demo/demo-0#0: read the agent's log (docs/" in err


def test_an_older_control_plane_is_looked_at_and_not_called_healthy(api: AdminApi, tmp_path: Path) -> None:
    del api.answers["findings"]
    api.items("certificates", CERTIFICATE)
    with api.serving():
        status, out, err = ran("doctor", "fleet", "-o", "json", env=environment(api, tmp_path))
    assert status == 1
    assert [one["reason"] for one in json.loads(out)] == ["NotCertified"]
    assert "the control plane is older than this command" in err


def test_policies_that_have_not_arrived_and_features_that_do_less_are_seen() -> None:
    lacking = Capability(feature="keys", mode="off", reason="native code is not installed")
    worker = msgspec.structs.replace(WORKER, policy_generation=0, capabilities=(lacking,))
    found = list(closer([POOL], [worker], []))
    assert [one["reason"] for one in found] == ["PolicyBehind", "CapabilityLacking"]
    assert found[1]["message"] == "keys is off: native code is not installed"
    away = msgspec.structs.replace(worker, connected=False, capabilities=())
    assert not list(closer([POOL], [away], []))
