"""Under constant traffic: rollout, scale-in, pods deleted and killed; what fails, and what the cache is worth after."""

from __future__ import annotations

import time
from typing import Final

import pytest

from e2e.node.client import Client, failures, hit_ratio
from e2e.node.looks import all_up, cache_values, kill_engine, one_pod, small_budget
from e2e.node.pools import Pool
from e2e.node.site import Site, until

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]
MUCH: Final = 1.5
"""So many times the other cache's value that the order stays while a worker is taken away."""


def test_a_rollout_under_traffic_fails_nothing(pool: Pool, client: Client, figures: dict[str, float]) -> None:
    before = {pod["metadata"]["uid"] for pod in pool.pods()}
    with client.traffic(seed=80) as traffic:
        traffic.reach(24)
        earlier = hit_ratio(traffic.read()[:24])
        started = time.monotonic()
        pool.patch({"engine": {"env": [{"name": "CACHEFLEET_E2E_ROUND", "value": "2"}]}})
        pool.ready()
        figures["rollout_seconds"] = time.monotonic() - started
        ended = time.time()
        traffic.reach(24)
    assert not before & {pod["metadata"]["uid"] for pod in pool.pods()}
    later = hit_ratio([one for one in traffic.results if one["at"] > ended][:24])
    figures |= {"hit_ratio_before_rollout": earlier, "hit_ratio_after_rollout": later}
    assert failures(traffic.results) == []
    assert later >= 0.9 * earlier


def test_a_smaller_fleet_gives_up_its_least_valuable_worker(
    site: Site, pool: Pool, client: Client, figures: dict[str, float]
) -> None:
    with small_budget(pool):
        pass  # what earlier tests have left, up to a full cache, would be worth as much as what is asked for here
    with client.traffic(rate=2, conversations=1, seed=84) as traffic:  # all of it to one worker
        traffic.reach(10)
        values = until(lambda: _of_two(site, traffic.results[-1]["worker"]), seconds=300)
        started = time.monotonic()
        pool.scale(1)
        site.wait("deployment/tiny-workers", pool.namespace, "jsonpath={.status.replicas}=1", seconds=120)
        figures["scale_in_seconds"] = time.monotonic() - started
        left = [pod["metadata"]["name"] for pod in pool.pods()]
        traffic.reach(20)
    pool.scale(2)  # waited for by the first test that needs it
    assert failures(traffic.results) == []
    assert left == [max(values, key=lambda name: values[name])]


def _of_two(site: Site, busy: str) -> dict[str, float] | None:
    """What caches are worth once the workers of an earlier test are gone, and the busy one's by far the most."""
    values = cache_values(site)
    return values if len(values) == 2 and values.get(busy, 0.0) > MUCH * min(values.values()) else None


@pytest.mark.parametrize("part", ["gateway", "operator", "worker"])
def test_a_pod_deleted_under_traffic_fails_nothing(
    site: Site, pool: Pool, client: Client, part: str, figures: dict[str, float]
) -> None:
    if part == "worker":
        pool.ready()
    with client.traffic(seed=82) as traffic:
        traffic.reach(10)
        namespace, pod = one_pod(site, pool, part)
        started = time.monotonic()
        site.kubectl("delete", "pod", pod, "-n", namespace, "--wait=true", "--timeout=300s")
        figures[f"{part}_pod_gone_seconds"] = time.monotonic() - started
        until(lambda: all_up(site, namespace), seconds=900)
        figures[f"{part}_pod_replaced_seconds"] = time.monotonic() - started
        traffic.reach(10)
    assert failures(traffic.results) == []


def test_a_worker_that_is_killed_fails_only_streams_it_was_writing(
    site: Site, pool: Pool, client: Client, figures: dict[str, float]
) -> None:
    with client.traffic(seed=83, tokens=32) as traffic:
        traffic.reach(10)
        pod = pool.pods()[0]["metadata"]["name"]
        started = time.monotonic()
        kill_engine(site, pool.namespace, pod)
        site.wait(f"pod/{pod}", pool.namespace, "condition=Ready=False", seconds=120)
        told = pool.becomes("Degraded", "True", "Crashed")["message"]
        assert f"pod {pod}, container engine: " in told
        assert ", since " in told
        site.wait(f"pod/{pod}", pool.namespace, "condition=Ready", seconds=900)
        figures["killed_engine_recovered_seconds"] = time.monotonic() - started
        traffic.reach(10)
    assert [one for one in failures(traffic.results) if not (one["stream"] and one.get("begun"))] == []
