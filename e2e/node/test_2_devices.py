"""Devices that workers claim (DRA), from the driver that publishes them to the engine's container and back.

Driver, scheduler, controllers, kubelet, container runtime and engine are real; the devices are not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from e2e.node.client import Client, failures
from e2e.node.devices import DEVICE_CLASS, DRIVER, SELECTOR, DeviceDriver
from e2e.node.pools import READY_SECONDS, Pool
from e2e.node.site import Object, Site, until

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]
MEMORY: Final = "1030Mi"
KV_CACHE: Final = 1030 - 2 - 512 - 504
"""MiB that are left of it for KV cache."""
SECONDS: Final = 600.0
"""Ends a hang: no step takes long on a machine with nothing else to do."""
SICK: Final = {"key": "example.com/sick", "value": "ecc"}
TAINTED: Final = "1 of 1 such devices being tainted (example.com/sick=ecc:{})"


@pytest.fixture(scope="module")
def driver(site: Site) -> Iterator[DeviceDriver]:
    if site.driver is None:
        pytest.skip("this cluster's nodes take no driver of ours")
    with site.driver.running():
        site.apply(DEVICE_CLASS)
        yield site.driver
        site.kubectl("delete", "deviceclass", DEVICE_CLASS["metadata"]["name"])


@pytest.fixture(scope="module")
def claimed(site: Site, pool: Pool, driver: DeviceDriver) -> Iterator[Pool]:
    """A pool of two workers that claim a device each and leave its memory to the driver, with the shared one's
    weights.
    """
    spec = pool.read()["spec"]
    made = Pool(site, pool.namespace, "claimed")
    claims = {"className": DEVICE_CLASS["metadata"]["name"], "selectors": [SELECTOR]}
    made.apply(
        {
            "model": {**spec["model"], "name": made.name},
            "podTemplate": spec["podTemplate"],
            "device": {"resource": "", "claims": claims, "activationMiB": 512, "floorMiB": 504},
        }
    )
    yield made
    made.delete()
    until(lambda: not driver.prepared(), seconds=SECONDS)


@pytest.fixture(scope="module")
def running(claimed: Pool, driver: DeviceDriver) -> Object:
    """The pod of the one worker that has the only device, when its engine runs."""
    driver.publish(MEMORY)
    ready = "condition=Ready"
    (pod,) = until(lambda: [pod for pod in claimed.pods() if pod["spec"].get("nodeName")] or None, seconds=SECONDS)
    claimed.site.wait(f"pod/{pod['metadata']['name']}", claimed.namespace, ready, seconds=READY_SECONDS)
    return claimed.site.get("pod", pod["metadata"]["name"], claimed.namespace)


def claims(pool: Pool) -> list[Object]:
    return pool.site.list("resourceclaims", pool.namespace)


def claim_of(pod: Object) -> str:
    """The name of the claim that was made for a pod."""
    (made,) = pod["status"]["resourceClaimStatuses"]
    return str(made["resourceClaimName"])


def waits(pool: Pool, words: str) -> None:
    """Wait until the pool tells of a worker that waits for devices, with these words."""

    def look() -> bool:
        told = pool.condition("Degraded")
        assert told.get("reason") == "DevicesUnavailable", told
        assert words in told["message"], told
        return True

    until(look, seconds=SECONDS)


def test_a_pool_waits_for_a_device_that_tells_its_memory(claimed: Pool) -> None:
    told = claimed.becomes("BudgetAdmitted", "Unknown", "DeviceMemoryUnknown")["message"]
    assert "no device of DeviceClass stand-in that is asked for is published" in told
    assert claimed.pods() == []


def test_an_engine_runs_on_the_device_that_its_claim_got(
    site: Site, claimed: Pool, driver: DeviceDriver, running: Object, client: Client
) -> None:
    claim = site.get("resourceclaim", claim_of(running), claimed.namespace)
    (given,) = claim["status"]["allocation"]["devices"]["results"]
    assert (given["driver"], given["device"]) == (DRIVER, "stand-in-0")
    assert driver.prepared() == {claim["metadata"]["uid"]}
    variables = {name: _environment(claimed, running, name) for name in ("engine", "agent")}
    assert f"CLAIMED_STAND_IN_0={claim['metadata']['name']}" in variables["engine"].splitlines()
    assert "CLAIMED_" not in variables["agent"], "of what has no claim"
    assert claimed.condition("BudgetAdmitted")["message"].endswith(f"in {KV_CACHE} MiB of KV cache")
    (engine,) = running["spec"]["containers"]
    assert str(KV_CACHE << 20) in engine["args"]
    assert failures(client.ask(4, model=claimed.name, tokens=2)) == []


def test_a_second_worker_waits_and_its_claim_is_named(claimed: Pool, running: Object) -> None:
    (waiting,) = [pod for pod in claimed.pods() if pod["metadata"]["uid"] != running["metadata"]["uid"]]
    claim, name = claim_of(waiting), waiting["metadata"]["name"]
    waits(claimed, f"pod {name}: ResourceClaim {claim} (1 of DeviceClass stand-in) is not allocated")
    waits(claimed, "cannot allocate all claims")
    assert claimed.condition("Ready")["status"] == "False"


def test_a_taint_of_the_driver_keeps_new_workers_away_and_is_named(
    claimed: Pool, driver: DeviceDriver, running: Object
) -> None:
    driver.publish(MEMORY, taints=[{**SICK, "effect": "NoSchedule"}])
    waits(claimed, TAINTED.format("NoSchedule"))
    assert running["metadata"]["uid"] in {pod["metadata"]["uid"] for pod in claimed.pods()}, "it has it already"
    claimed.scale(1)
    claimed.ready()
    until(lambda: len(claimed.pods()) == 1, seconds=SECONDS)
    assert claimed.pods()[0]["metadata"]["uid"] == running["metadata"]["uid"], "the one that waits goes first"
    driver.publish(MEMORY)


def test_a_rule_evicts_the_worker_whose_device_it_taints_and_the_next_waits_for_its_end(
    site: Site, claimed: Pool, driver: DeviceDriver, running: Object
) -> None:
    site.apply(_rule("NoExecute"))
    try:
        (waiting,) = until(
            lambda: [pod for pod in claimed.pods() if pod["status"]["phase"] == "Pending"] or None, seconds=300
        )
        assert waiting["metadata"]["uid"] != running["metadata"]["uid"]
        waits(claimed, TAINTED.format("NoExecute of DeviceTaintRule sick"))
        until(lambda: not driver.prepared(), seconds=SECONDS)
        waiting = site.get("pod", waiting["metadata"]["name"], claimed.namespace)
        assert "nodeName" not in waiting["spec"]
    finally:
        site.kubectl("delete", "devicetaintrule", "sick")
    again = until(driver.prepared, seconds=SECONDS)
    assert again == {site.get("resourceclaim", claim_of(waiting), claimed.namespace)["metadata"]["uid"]}


def test_a_pool_scaled_to_nothing_gives_its_devices_back(claimed: Pool, driver: DeviceDriver) -> None:
    claimed.scale(0)
    until(lambda: not claims(claimed), seconds=SECONDS)
    until(lambda: not driver.prepared(), seconds=SECONDS)


def _environment(pool: Pool, pod: Object, container: str) -> str:
    inside = ["exec", "-n", pool.namespace, pod["metadata"]["name"], "-c", container, "--"]
    return pool.site.kubectl(
        *inside, "python3", "-c", "import os; print(*(f'{k}={v}' for k, v in os.environ.items()), sep='\\n')"
    )


def _rule(effect: str) -> Object:
    spec = {"deviceSelector": {"driver": DRIVER, "device": "stand-in-0"}, "taint": {**SICK, "effect": effect}}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": "sick"}}
    return {**about, "spec": spec}
