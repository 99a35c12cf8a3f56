from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cachefleet_core.environment.removed_variables import REMOVED
from cachefleet_worker.agent.agent import code_of
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
        {"backend": "rust"},
    ],
)
def test_wrong_values_are_refused(make_settings: Make, changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_settings(**changes)


def test_what_is_no_longer_read_changes_nothing(make_settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name.lower() for name in REMOVED["agent"]} == set(AgentBounds.model_fields)
    before = make_settings()
    for name in REMOVED["agent"]:
        monkeypatch.setenv(f"CACHEFLEET_{name}", "7")
    assert make_settings() == before


def test_the_code_of_block_keys_is_named_by_the_environment(
    make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CACHEFLEET_BACKEND", raising=False)
    assert make_settings().backend == "auto"
    monkeypatch.setenv("CACHEFLEET_BACKEND", "python")
    assert make_settings().backend == "python"
    monkeypatch.setenv("CACHEFLEET_BACKEND", "")
    assert make_settings().backend == "auto"


@pytest.mark.parametrize("text", ["", "not base64!", "c2hvcnQ=", "ä"])
def test_an_index_key_that_is_none_is_refused(make_settings: Make, tmp_path: Path, text: str) -> None:
    (tmp_path / "bad").write_text(text)
    with pytest.raises(ValueError, match="bad"):
        make_settings(index_key_file=tmp_path / "bad").index_key()


def test_the_process_names_what_is_wrong_and_ends_with_2() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CACHEFLEET_")}
    environment |= {"CACHEFLEET_POOL": "nameonly", "CACHEFLEET_INDEX_KEY_FILE": "missing"}
    done = subprocess.run(
        [sys.executable, "-m", "cachefleet_worker.agent"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 2
    assert "CACHEFLEET_POOL:" in done.stderr
    assert "CACHEFLEET_WORKER: Field required" in done.stderr
    environment |= {"CACHEFLEET_POOL": "a/b", "CACHEFLEET_WORKER": "w"}
    done = subprocess.run(
        [sys.executable, "-m", "cachefleet_worker.agent"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 2
    assert "missing" in done.stderr


def test_native_code_that_is_insisted_on_and_not_there_is_named(
    make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cachefleet_native", None)
    with pytest.raises(ValueError, match="CACHEFLEET_BACKEND: cachefleet_native is not installed"):
        code_of(make_settings(backend="native"))
    assert code_of(make_settings(backend="auto")).name == "python"
