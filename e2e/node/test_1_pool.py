"""A pool as its users meet it: answers from cache, what kubectl says, live changes, clear words about trouble.

The tests of this folder are one story in a real cluster, from ``helm install`` to ``helm uninstall``, in the order of
the files: starting a vLLM takes most of a minute on a small machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from cachefleet_core.pool.worker_spec import AdapterSpec
from e2e.node.client import Client, failures
from e2e.node.families import bracketed, names_of
from e2e.node.looks import idle_blocks, images_of, small_budget, writes
from e2e.node.pools import Pool, from_image
from e2e.node.site import NAMESPACE, RELEASE, CommandError, Site, until

# What is asked for, the condition that tells of it, and a word that its message must have.
WRONG: Final[dict[str, tuple[dict[str, Any], tuple[str, str, str], str]]] = {
    "too-much": (
        {"model.name": "a", "prefixCache.budgetMiB": 900},
        ("BudgetAdmitted", "False", "BudgetExceedsKVCache"),
        "900",
    ),
    "no-image": (
        # With nothing of the example's that runs before the engine's image is asked for.
        {"model.name": "b", "engine.image": "localhost/none:1", "replicas": 1, "podTemplate.spec.initContainers": []},
        ("Degraded", "True", "ImageUnavailable"),
        "none:1",
    ),
    # Of the fleet of the shared pool, as it serves the same model.
    "misshapen": ({"engine.blockSize": 64, "replicas": 1}, ("ContractConsistent", "False", "PoolsDiffer"), "64"),
}
pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]
LOOKED_AT: Final = 12.0
"""Seconds in which the control plane is asked about every pool some times, and its state written at most once."""
QUIET_ATTEMPTS: Final = 6


OF_IMAGES: Final[dict[str, tuple[dict[str, Any], str, str]]] = {
    "no-tag": ({"model.source": "acme/none:1"}, "ImageUnavailable", "not found"),
    "no-password": ({"model.source": "acme/locked:1", "podTemplate": {}}, "ImageUnavailable", "give pull secrets"),
    "no-folder": ({"model.source": "acme/tiny:1", "model.subPath": "none"}, "ContainerRefused", "no such folder"),
    "artifact": ({"model.source": "acme/artifact:1", "model.subPath": ""}, "CrashLooping", "build an image"),
}
"""Images of weights that cannot be had, below the registry: the reason of Degraded, and a word of its message."""


def test_its_weights_came_from_an_image_and_are_those_of_the_digest(site: Site, pool: Pool) -> None:
    if site.registry is None:
        pytest.skip("this cluster has no registry of ours")
    digest = pool.read()["spec"]["model"]["source"].partition("@")[2]
    for pod in pool.pods():
        assert any(one.endswith(f"/acme/tiny:1@{digest}") for one in images_of(pod))
        inside = ["exec", "-n", pool.namespace, pod["metadata"]["name"], "-c", "engine", "--"]
        assert "model.safetensors" in site.kubectl(*inside, "ls", "/mnt/model")
        with pytest.raises(CommandError, match="Read-only"):
            site.kubectl(*inside, "touch", "/mnt/model/x")
        agent = next(each for each in pod["spec"]["initContainers"] if each["name"] == "agent")
        assert {"name": "CACHEFLEET_REVISION", "value": digest} in agent["env"]
    assert pool.condition("ContractConsistent")["status"] == "True"  # by which workers of other revisions are used last


def test_an_adapter_from_an_image_answers_to_its_name(site: Site, pool: Pool, client: Client) -> None:
    """By itself: with words and blocks of its own, and from the folder of its digest."""
    if site.registry is None:
        pytest.skip("this cluster has no registry of ours")
    adapter = AdapterSpec.model_validate(pool.read()["spec"]["model"]["adapters"][0])
    assert adapter.image is not None
    for pod in pool.pods():
        assert adapter.image.reference in images_of(pod)
        inside = ["exec", "-n", pool.namespace, pod["metadata"]["name"], "-c", "engine", "--"]
        assert "adapter_model.safetensors" in site.kubectl(*inside, "ls", adapter.image.adapter_folder)
    pool.becomes("EngineAsAsked", "True", "EnginesAsAsked")  # which compares where adapters were loaded from
    asked = {"conversations": 1, "stream": "never", "seed": 75}
    first, second = client.ask(2, model=adapter.name, **asked)
    (plain,) = client.ask(1, **asked)
    assert not failures([first, second, plain])
    assert (first["cached"], second["cached"] > 200, plain["cached"]) == (0, True, 0)
    assert first["text"] != plain["text"]


def test_an_image_that_cannot_be_mounted_is_said_with_what_to_do(site: Site, pool: Pool) -> None:
    if site.registry is None:
        pytest.skip("this cluster has no registry of ours")
    made = {name: Pool(site, pool.namespace, name) for name in OF_IMAGES}
    for name, (changes, *_) in OF_IMAGES.items():
        own = {"model.name": name, "replicas": 1, **from_image(""), **changes}
        made[name].apply(own | {"model.source": f"oci://{site.registry.address}/{own['model.source']}"})
    try:
        for name, (_, reason, word) in OF_IMAGES.items():
            found = made[name].becomes("Degraded", "True", reason, seconds=300)
            assert word in found["message"], found["message"]
    finally:
        for each in made.values():
            each.delete()


def test_all_addresses_are_of_the_node_s_families(site: Site, pool: Pool) -> None:
    """Those of pods, of the Service for clients and of workers, whose one address is of the cluster's own."""
    if not site.families:
        pytest.skip("nobody knows this cluster's families")
    for pod in (*pool.pods(), *site.list("pods")):
        assert names_of(one["ip"] for one in pod["status"]["podIPs"]) == site.families
    assert names_of(_service(site)["clusterIPs"]) == site.families
    slices = site.list("endpointslices", pool.namespace)
    assert {each["addressType"].lower() for each in slices} == {site.families[0]}


def test_clients_are_answered_at_each_address_of_the_gateway(site: Site, client: Client) -> None:
    for address in _service(site)["clusterIPs"]:
        (answered,) = client.ask(1, url=f"http://{bracketed(address)}:8080", seed=76)
        assert not failures([answered]), answered


def _service(site: Site) -> dict[str, Any]:
    return dict(site.get("service", f"{RELEASE}-gateway")["spec"])


def test_a_conversation_s_next_turn_is_served_from_cache(client: Client) -> None:
    first, second = client.ask(2, conversations=1, stream="never", seed=77)
    assert not failures([first, second])
    assert first["cached"] == 0
    assert second["cached"] > 200
    assert second["worker"] == first["worker"]


def test_the_release_s_own_test_passes(site: Site, pool: Pool) -> None:
    said = site.helm("test", RELEASE, "-n", NAMESPACE, "--timeout", "3m", "--logs")
    assert "Phase:          Succeeded" in said
    assert "POD LOGS: cachefleet-test-hit" in said
    pool.ready()


def test_kubectl_tells_all_of_a_pool(site: Site, pool: Pool, client: Client) -> None:
    client.ask(12, conversations=2, seed=78)
    until(lambda: float((pool.read()["status"].get("hitRatio") or {}).get("value") or 0) > 0.01, seconds=300)
    head, row = site.kubectl("get", "pcp", "-n", pool.namespace).splitlines()
    shown = dict(zip(re.split(r"\s{2,}", head.strip()), re.split(r"\s{2,}", row.strip()), strict=True))
    assert {name: shown[name] for name in ("NAME", "READY", "MODEL", "WORKERS", "BUDGET", "REASON")} == {
        "NAME": "tiny",
        "READY": "True",
        "MODEL": "tiny",
        "WORKERS": "2",
        "BUDGET": "4",
        "REASON": "WorkersReady",
    }
    assert 0 < float(shown["HIT"]) < 1
    status = pool.read()["status"]
    assert {worker["state"] for worker in status["workers"]} == {"ready"}
    assert status["contract"]
    assert {one["type"] for one in status["conditions"]} == {
        *("Ready", "ConfigValid", "BudgetAdmitted", "WorkersAvailable", "ContractConsistent"),
        *("EngineAsAsked", "IndexFresh", "IndexBlind", "HitRateMet", "KeysBroken", "ModelNameConflict"),
        *("Progressing", "Degraded", "Stalled"),
    }
    explained = site.kubectl("explain", "pcp.spec.prefixCache")
    assert "budgetMiB" in explained
    assert "idle" in explained


def test_kubectl_s_plugin_reaches_the_control_plane(site: Site, pool: Pool, tmp_path: Path) -> None:
    """By a port-forward to its pod, with TLS and the token of a service account that may look at pools."""
    (tmp_path / "kubectl").symlink_to(site.programs["kubectl"])
    site.kubectl("create", "serviceaccount", "sre", "-n", pool.namespace)
    site.kubectl(
        "create", "clusterrolebinding", "sre-view", "--clusterrole=view", f"--serviceaccount={pool.namespace}:sre"
    )
    place = [f"--kubeconfig={site.kubeconfig}", "--service-account", f"{pool.namespace}/sre"]
    plugin = "import sys; from cachefleet_local.__main__ import kubectl_main; kubectl_main()"
    command = [sys.executable, "-c", plugin, "workers", "-o", "json", *place]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def workers() -> list[Any] | None:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode and "may not list" not in done.stderr:  # answers on rights are remembered for seconds
            raise CommandError(done.stderr)
        return None if done.returncode else list(json.loads(done.stdout))

    try:
        found = until(workers, seconds=300)
        assert [one["ready"] for one in found] == [True, True]
        hosts = {bracketed(pod["status"]["podIP"]) for pod in pool.pods()}
        assert {one["url"] for one in found} == {f"https://{host}:8000" for host in hosts}
    finally:
        site.kubectl("delete", "clusterrolebinding", "sre-view")
        site.kubectl("delete", "serviceaccount", "sre", "-n", pool.namespace)


def test_a_second_look_writes_nothing(site: Site, pool: Pool) -> None:
    if site.requests is None:
        pytest.skip("this cluster's audit log cannot be read")
    for _ in range(QUIET_ATTEMPTS):  # on a busy machine a report may be late once, which is told and taken back
        before = len(writes(site))
        time.sleep(LOOKED_AT)
        later = writes(site)[before:]
        if not later or (len(later) == 1 and "prefixcachepools/status" in later[0]):
            break  # of a pool's state, which is written every 30 seconds at most
    else:
        pytest.fail(f"it is written all the time, as {later}")
    pool.ready()


def test_a_budget_changes_live(pool: Pool, client: Client, figures: dict[str, float]) -> None:
    """The engine's own bound on idle blocks moves, and nothing is started anew."""
    client.ask(60, conversations=60, seed=79, tokens=2)
    starts = pool.starts()
    assert max(idle_blocks(pool)) > 128  # more than the new budget allows
    started = time.monotonic()
    with small_budget(pool):
        figures["budget_change_seconds"] = time.monotonic() - started
        assert pool.starts() == starts
    pool.ready()
    assert pool.starts() == starts


def test_what_cannot_be_is_said_and_harms_no_other(site: Site, pool: Pool, figures: dict[str, float]) -> None:
    starts = pool.starts()
    made = {name: Pool(site, pool.namespace, name) for name in WRONG}
    for name, (changes, *_) in WRONG.items():
        made[name].apply(changes)
    try:
        with ThreadPoolExecutor() as at_once:
            shown = at_once.map(lambda name: _shows(made[name], *WRONG[name][1:]), WRONG)
            figures |= {
                f"{expected[2]}_seconds": each for (_, expected, _), each in zip(WRONG.values(), shown, strict=True)
            }
        pool.ready()
        assert pool.starts() == starts
    finally:
        for each in made.values():
            each.delete()
    pool.becomes("ContractConsistent", "True", "Consistent")


def _shows(pool: Pool, expected: tuple[str, str, str], word: str) -> float:
    """Seconds until the condition was there, with a word in its message and an event of the same reason."""
    kind, status, reason = expected
    # An engine must have started to have a contract.
    found = pool.becomes(kind, status, reason, seconds=900 if kind == "ContractConsistent" else 300)
    assert word in found["message"]
    until(lambda: [event for event in pool.events() if event["reason"] == reason], seconds=300)
    return _between(pool.read()["metadata"]["creationTimestamp"], found["lastTransitionTime"])


def _between(first: str, second: str) -> float:
    parsed = [time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")) for text in (first, second)]
    return parsed[1] - parsed[0]
