"""Completion, as bash asks for it: commands, options, and names that the control plane knows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.cli.admin_api import AdminApi, environment
from tests.local.cli.test_listing import DECISION, POOL, item


def completed(typed: str, api: AdminApi, folder: Path) -> list[str]:
    asked = {"_CACHEFLEET_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    program = Path(sys.executable).with_name("cachefleet")
    done = subprocess.run([program], env=environment(api, folder, **asked), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def api() -> AdminApi:
    api = AdminApi()
    api.items("pools", item(POOL))
    api.items("decisions", item(DECISION))
    api.items("tenants", {"name": "acme"}, {"name": "umbrella"})
    return api


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("cachefleet te", ["tenants"]),
        ("cachefleet tenants k", ["keys"]),
        ("cachefleet --inst", ["--install-completion"]),
        ("cachefleet tenants --inst", []),
        ("cachefleet workers --pool d", ["default/demo"]),
        ("cachefleet decisions --model ", ["tiny"]),
        ("cachefleet explain ", ["d1"]),
        ("cachefleet flush --pool ", ["default/demo"]),
        ("cachefleet flush --tenant u", ["umbrella"]),
        ("cachefleet tenants delete a", ["acme"]),
        ("cachefleet tenants keys list ", ["acme", "umbrella"]),
        ("cachefleet pools -o ", ["table", "wide", "json", "yaml", "name"]),
    ],
)
def test_names_are_completed(api: AdminApi, tmp_path: Path, typed: str, wanted: list[str]) -> None:
    with api.serving():
        assert completed(typed, api, tmp_path) == wanted


def test_nothing_is_completed_and_nothing_said_while_nobody_answers(api: AdminApi, tmp_path: Path) -> None:
    with api.serving():
        api.token = "other"
        assert completed("cachefleet workers --pool ", api, tmp_path) == []


def test_contexts_are_completed(api: AdminApi, tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "cachefleet"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("contexts: {prod: {url: x}, local: {dataDir: y}}")
    assert completed("cachefleet pools --context p", api, tmp_path) == ["prod"]
