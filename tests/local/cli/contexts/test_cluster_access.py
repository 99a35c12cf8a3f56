"""A control plane in a cluster, with a kubectl of our own in its place; e2e/cluster has the real one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefleet_local.cli.contexts.access import Where, find_access
from cachefleet_local.cli.contexts.cluster_access import Cluster, end_forwards, reached
from cachefleet_local.cli_errors import FailureError
from tests.controlplane.waiting import until

PORT = {"name": "internal", "port": 8081, "appProtocol": "http"}
SERVICES = {"items": [{"metadata": {"namespace": "ns", "name": "cp"}, "spec": {"ports": [PORT]}}]}
KUBECTL = """#!{python}
import pathlib, signal, sys
here = pathlib.Path(__file__).parent
if "services" in sys.argv:
    print((here / "services.json").read_text())
elif "token" in sys.argv:
    print("issued")
else:
    print("Forwarding from 127.0.0.1:4321 -> 8081", flush=True)
    for _ in range(5000):
        print("Handling connection for 4321", flush=True)
    (here / "handled").touch()
    signal.pause()
"""


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a kubectl that knows one control plane, and whose port-forward says a lot."""
    (tmp_path / "services.json").write_text(json.dumps(SERVICES))
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(python=sys.executable))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    yield tmp_path
    end_forwards()


async def test_a_port_is_forwarded_however_many_connections_kubectl_tells_of(kubectl: Path) -> None:
    found = reached(Cluster(service_account="serving/sre"), url=None, with_token=True)
    assert found.token == "issued"
    await until((kubectl / "handled").exists)


async def test_without_tls_only_the_address_that_kubectl_listens_on_is_asked(kubectl: Path) -> None:
    """Another user of the machine may listen on that port of ::1, which ``localhost`` may mean as well."""
    found = reached(Cluster(service_account="serving/sre"), url=None, with_token=True)
    assert found.url == "http://127.0.0.1:4321"


def test_a_cluster_and_a_local_fleet_are_not_asked_for_at_once(tmp_path: Path) -> None:
    where = Where(cluster=Cluster(service_account="serving/sre"), data_dir=tmp_path)
    with pytest.raises(FailureError, match="--data-dir"):
        find_access(where, {})
    file = tmp_path / "cachefleet" / "config.yaml"
    file.parent.mkdir()
    file.write_text("contexts: {prod: {cluster: {serviceAccount: serving/sre}}, laptop: {dataDir: /x}}")
    for name in ("prod", "laptop"):
        with pytest.raises(FailureError, match="--context"):
            find_access(Where(context=name, data_dir=tmp_path), {"XDG_CONFIG_HOME": str(tmp_path)})
