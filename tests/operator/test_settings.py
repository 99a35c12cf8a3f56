import subprocess
import sys
from pathlib import Path

import pytest

from cachefleet_core.environment.removed_variables import REMOVED
from cachefleet_operator.settings import Settings, SettingsError, load


def test_what_is_no_longer_read_is_no_setting() -> None:
    assert {name.lower() for name in REMOVED["operator"]} & set(Settings.model_fields) == set()


def test_a_variable_that_is_no_longer_read_is_told_once(tmp_path: Path) -> None:
    """Before anything else can fail, here for want of a cluster."""
    environment = {"CACHEFLEET_AGENT_IMAGE": "a:1", "CACHEFLEET_LIST_PAGE": "7", "KUBECONFIG": str(tmp_path / "none")}
    command = [sys.executable, "-m", "cachefleet_operator"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert told.stderr.count("CACHEFLEET_LIST_PAGE is no longer read: ") == 1


def test_an_image_for_the_agent_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHEFLEET_AGENT_IMAGE", raising=False)
    with pytest.raises(SettingsError, match="CACHEFLEET_AGENT_IMAGE: Field required"):
        load()


def test_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEFLEET_AGENT_IMAGE", "agent:1")
    monkeypatch.setenv("CACHEFLEET_NAMESPACES", "one, two,")
    monkeypatch.setenv("CACHEFLEET_OPERATOR_NAMESPACE", "ops")
    monkeypatch.setenv("CACHEFLEET_WORKER_PEERS", '[{"podSelector": {}}]')
    settings = load()
    assert settings.worker_peers == ({"podSelector": {}},)
    assert settings.namespaces == ("one", "two")
    assert settings.control_plane_address == "cachefleet-controlplane-headless.ops.svc:8081"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("CACHEFLEET_TLS_AUTHORITY_DAYS", "100", "must be at least five times CACHEFLEET_TLS_CERTIFICATE_DAYS"),
        (
            "CACHEFLEET_MODEL_NAMES",
            '{"qwen": "a"}',
            "CACHEFLEET_MODEL_NAMES: must be a mapping of model names to lists",
        ),
        ("CACHEFLEET_WORKERS", "0", "CACHEFLEET_WORKERS: "),
        ("CACHEFLEET_NAMESPACES", "Not_A_Name", "CACHEFLEET_NAMESPACES.0: "),
        ("CACHEFLEET_WORKER_PEERS", "[{", "CACHEFLEET_WORKER_PEERS: must be JSON"),
        ("CACHEFLEET_WORKER_PEERS", '{"podSelector": {}}', "CACHEFLEET_WORKER_PEERS: must be a list"),
        ("CACHEFLEET_WORKER_PEERS", "[{}]", "each of ipBlock, namespaceSelector, podSelector"),
        ("CACHEFLEET_WORKER_PEERS", '[{"pods": {}}]', "must be a list of a NetworkPolicy's peers"),
    ],
)
def test_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    monkeypatch.setenv("CACHEFLEET_AGENT_IMAGE", "agent:1")
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load()
    assert message in str(caught.value)
