from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cachefleet_core.environment.removed_variables import REMOVED
from cachefleet_core.native import API, REMEDY
from cachefleet_worker.agent.settings import AgentBounds, AgentSettings
from tests.worker.agent.model import INDEX_KEY

Make = Callable[..., AgentSettings]


def test_lists_and_secrets_are_read(make_settings: Make) -> None:
    settings = make_settings(control_planes=" ws://a:1 , wss://b:2/v1/reports,", engine_url="http://127.0.0.1:9/")
    assert settings.control_planes == ("ws://a:1", "wss://b:2/v1/reports")
    assert settings.engine_url == "http://127.0.0.1:9"
    assert settings.index_key() == INDEX_KEY
    assert settings.worker_key() == "key"


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": "nameonly"},
        {"worker": ""},
        {"control_planes": "http://a"},
        {"control_plane_dns": "noport"},
        {"engine_url": "ftp://x"},
        {"ranks": 0},
        {"http_port": 70000},
    ],
)
def test_wrong_values_are_refused(make_settings: Make, changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_settings(**changes)


def test_what_is_no_longer_read_changes_nothing(make_settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name.lower() for name in REMOVED["agent"]} == {*AgentBounds.model_fields, "backend"}
    before = make_settings()
    for name in REMOVED["agent"]:
        monkeypatch.setenv(f"CACHEFLEET_{name}", "7")
    assert make_settings() == before


@pytest.mark.parametrize("text", ["", "not base64!", "c2hvcnQ=", "ä"])
def test_an_index_key_that_is_none_is_refused(make_settings: Make, tmp_path: Path, text: str) -> None:
    (tmp_path / "bad").write_text(text)
    with pytest.raises(ValueError, match="bad"):
        make_settings(index_key_file=tmp_path / "bad").index_key()


def start(**variables: str) -> subprocess.CompletedProcess[str]:
    """An agent's process with these variables of ours alone, at its end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CACHEFLEET_")}
    return subprocess.run(
        [sys.executable, "-m", "cachefleet_worker.agent"],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )


def test_the_process_names_what_is_wrong_and_ends_with_2() -> None:
    done = start(CACHEFLEET_POOL="nameonly", CACHEFLEET_INDEX_KEY_FILE="missing")
    assert done.returncode == 2
    assert "CACHEFLEET_POOL:" in done.stderr
    assert "CACHEFLEET_WORKER: Field required" in done.stderr
    done = start(CACHEFLEET_POOL="a/b", CACHEFLEET_WORKER="w", CACHEFLEET_INDEX_KEY_FILE="missing")
    assert done.returncode == 2
    assert "missing" in done.stderr


def test_without_the_native_module_it_ends_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "cachefleet_native.py").write_text("API = 0")
    (tmp_path / "key").write_bytes(base64.b64encode(bytes(32)))
    names = {"CACHEFLEET_POOL": "a/b", "CACHEFLEET_WORKER": "w", "CACHEFLEET_INDEX_KEY_FILE": str(tmp_path / "key")}
    done = start(**names, PYTHONPATH=str(tmp_path), CACHEFLEET_LOG_FORMAT="text")
    assert done.returncode == 2
    problem = f"cachefleet agent: cachefleet_native has interface 0, and this release needs {API}"
    assert done.stderr == f"{problem}: {REMEDY}\n"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://fd00::a1:8000", "http://[fd00::a1]:8000"),
        ("https://2001:db8:0:1::5:8000", "https://[2001:db8:0:1::5]:8000"),
        ("http://::1:8000", "http://[::1]:8000"),
        ("http://[fd00::a1]:8000", "http://[fd00::a1]:8000"),
        ("http://10.1.2.3:8000", "http://10.1.2.3:8000"),
        ("http://worker.serving.svc:8000/base", "http://worker.serving.svc:8000/base"),
        ("http://worker", "http://worker"),
    ],
)
def test_an_ipv6_address_of_the_pod_gets_its_brackets(make_settings: Make, given: str, url: str) -> None:
    """A container's description can only put $(POD_IP) and a port one after the other."""
    settings = make_settings(endpoint=given, agent_endpoint=given)
    assert (settings.endpoint, settings.agent_endpoint) == (url, url)
