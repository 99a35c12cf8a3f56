import os
from pathlib import Path
from typing import Any

import pytest

from cachefleet_operator.manifests.agent_container import agent_container
from cachefleet_operator.manifests.engine_container import engine_container
from cachefleet_worker.agent.settings import AgentSettings
from tests.operator.pools import SETTINGS, pool


def variables() -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in agent_container(pool(), SETTINGS)["env"]}


def test_it_follows_the_engine_where_the_engine_publishes() -> None:
    arguments = " ".join(engine_container(pool(), SETTINGS)["args"])
    for name in ("EVENTS", "REPLAY"):
        endpoint = variables()[f"CACHEFLEET_{name}_ENDPOINT"]["value"]
        assert endpoint.startswith("ipc:///run/cachefleet/")
        assert endpoint in arguments


def test_it_says_where_it_and_its_engine_can_be_reached() -> None:
    found = variables()
    assert found["CACHEFLEET_ENDPOINT"]["value"] == "http://$(POD_IP):8000"
    assert found["CACHEFLEET_AGENT_ENDPOINT"]["value"] == "http://$(POD_IP):8082"
    names = list(found)
    assert names.index("POD_IP") < names.index("CACHEFLEET_ENDPOINT")  # a variable knows only those before it
    assert found["CACHEFLEET_CONTROL_PLANE_DNS"]["value"] == "cachefleet-controlplane-headless.ops.svc:8081"


def test_every_file_that_it_is_told_of_is_mounted() -> None:
    mounts = [mount["mountPath"] for mount in agent_container(pool(), SETTINGS)["volumeMounts"]]
    files = [each["value"] for name, each in variables().items() if name.endswith("_FILE")]
    assert len(files) == 4
    assert all(any(file.startswith(f"{mount}/") for mount in mounts) for file in files)


def test_the_agent_takes_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CACHEFLEET_")]:
        monkeypatch.delenv(name)
    for name, variable in variables().items():
        monkeypatch.setenv(name, variable.get("value", "10.0.0.1"))
    told = AgentSettings()
    assert (told.pool, told.weights) == ("serving/demo", "org/tiny")
    assert told.worker_key_file == Path("/etc/cachefleet/keys/worker.key")
    assert (told.drain_seconds, told.after_drain) == (120, "stay")
    assert told.drain_path.startswith("/drain/")
