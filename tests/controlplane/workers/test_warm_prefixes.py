"""Which prompts the workers of a pool are told to keep cached, under which salts, and when they are told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.pools.cache_salts import Salter
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_controlplane.workers.warm_prefixes import Warming
from cachefleet_core.pool.spec import PrefixCachePool, read_pool
from cachefleet_core.report_frames import Policy, Warm, decode_down, encode
from cachefleet_core.tenancy import TenantId, tenant_salt
from tests.controlplane.fleets import FakeLink
from tests.controlplane.frames import hello

SALT_KEY = b"s" * 32
SYSTEM = {"role": "system", "content": "You are a support agent."}


def pool(*prefixes: dict[str, Any], name: str = "demo", isolation: str = "PerTenant", **cache: Any) -> PrefixCachePool:
    generation = cache.pop("generation", 1)
    return read_pool(
        {
            "apiVersion": "cachefleet.io/v1alpha1",
            "kind": "PrefixCachePool",
            "metadata": {"name": name, "namespace": "default", "uid": "u-1", "generation": generation},
            "spec": {
                "model": {"name": "m", "source": "m", "weightsMiB": 1},
                "engine": {"maxModelLen": 128, "dataParallelSize": 2},
                "device": {"resource": "", "memoryMiB": 8192},
                "tenancy": {"isolation": isolation},
                "prefixCache": {"warmPrefixes": list(prefixes), **cache},
            },
        }
    )


def prefix(name: str = "p", *tenants: str, content: str = "") -> dict[str, Any]:
    message = SYSTEM | ({"content": content} if content else {})
    return {"name": name, "messages": [message], "tenants": list(tenants)}


def frame(one: PrefixCachePool, *others: PrefixCachePool) -> Warm:
    return Warming(Salter(SALT_KEY)).frame(one, [one, *others])


def test_a_prefix_is_warmed_for_each_of_its_tenants_under_the_salt_their_requests_carry() -> None:
    warm = frame(pool(prefix("p", "acme", "umbrella"), generation=4))
    assert (warm.standing, warm.uid, warm.generation) == (True, "u-1", 4)
    [made] = warm.prefixes
    assert made.name == "p"
    assert made.salts == tuple(tenant_salt(SALT_KEY, TenantId(tenant)) for tenant in ("acme", "umbrella"))
    assert msgspec.json.decode(made.messages) == [SYSTEM]
    assert decode_down(encode(warm)) == warm


def test_blocks_that_all_share_need_no_salt() -> None:
    [made] = frame(pool(prefix("p", "acme"), isolation="Shared")).prefixes
    assert made.salts == ()


def test_a_pool_that_shares_in_a_fleet_that_does_not_is_salted_like_its_requests() -> None:
    [made] = frame(pool(prefix("p"), isolation="Shared"), pool(name="other")).prefixes
    assert made.salts == (tenant_salt(SALT_KEY, TenantId("default")),)


@pytest.mark.parametrize("cache", [{"enabled": False}, {"budgetMiB": 0}])
def test_where_nothing_is_kept_nothing_is_warmed(cache: dict[str, Any]) -> None:
    assert frame(pool(prefix("p", "acme"), **cache)).prefixes == ()


def test_what_the_protocol_cannot_carry_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    some = [prefix(f"p{number}", "acme", content="x" * 260_000) for number in range(20)]
    warm = frame(pool(*some))
    assert [made.name for made in warm.prefixes] == [f"p{number}" for number in range(len(warm.prefixes))]
    assert 10 < len(warm.prefixes) < 20
    assert decode_down(encode(warm)) == warm
    [record] = caplog.records
    assert record.__dict__["prefixes"] == [f"p{number}" for number in range(len(warm.prefixes), 20)]


def fleet_with(*pools: PrefixCachePool, salt_key: bytes | None = SALT_KEY) -> Fleet:
    fleet = Fleet(BlockIndex(), index_key=b"i" * 32, salt_key=salt_key)
    update(fleet, *pools)
    return fleet


def update(fleet: Fleet, *pools: PrefixCachePool) -> None:
    fleet.update_pools([PoolView(one, (WorkerEndpoint("demo-0", "http://x", ready=True),)) for one in pools])


def connect(fleet: Fleet, **greeting: Any) -> FakeLink:
    link = FakeLink()
    link.connection = fleet.connect(link)
    fleet.hello(link.connection, hello("demo-0", **greeting))
    return link


def warms(link: FakeLink) -> list[list[str]]:
    return [[made.name for made in sent.prefixes] for sent in link.sent if isinstance(sent, Warm)]


def test_a_worker_is_told_after_the_hello_of_each_epoch_and_after_its_policy() -> None:
    fleet = fleet_with(pool(prefix("p", "acme")))
    link = connect(fleet, epoch="e1")
    assert [type(sent) for sent in link.sent] == [Policy, Warm]
    policy = link.sent[0]
    assert isinstance(policy, Policy)
    assert policy.warm_prefixes == 1
    fleet.hello(link.connection, hello("demo-0", epoch="e1", rank=1))
    assert warms(link) == [["p"]]
    fleet.hello(link.connection, hello("demo-0", epoch="e2"))
    assert warms(link) == [["p"], ["p"]]
    assert warms(connect(fleet, epoch="e2")) == [["p"]]


def test_a_worker_is_told_of_changes_and_of_nothing_else() -> None:
    fleet = fleet_with(pool(prefix("p", "acme")))
    link = connect(fleet)
    update(fleet, pool(prefix("p", "acme")))
    assert warms(link) == [["p"]]
    update(fleet, pool(prefix("p", "acme"), prefix("q", "acme")))  # a pool file has no generations
    update(fleet, pool(prefix("q", "acme"), generation=2))
    update(fleet, pool(generation=3))
    assert warms(link) == [["p"], ["p", "q"], ["q"], []]


def test_another_pools_tenancy_changes_the_salts_of_the_whole_fleet() -> None:
    fleet = fleet_with(pool(prefix("p", "acme"), isolation="Shared"))
    link = connect(fleet)
    update(fleet, pool(prefix("p", "acme"), isolation="Shared"), pool(name="other"))
    salts = [sent.prefixes[0].salts for sent in link.sent if isinstance(sent, Warm)]
    assert salts == [(), (tenant_salt(SALT_KEY, TenantId("acme")),)]


def test_a_tenants_new_salt_is_told_without_a_change_of_the_pool() -> None:
    versions = {TenantId("acme"): 1}
    fleet = Fleet(
        BlockIndex(), index_key=b"i" * 32, salt_key=SALT_KEY, salt_version=lambda tenant: versions.get(tenant, 1)
    )
    update(fleet, pool(prefix("p", "acme"), prefix("q", "other")))
    link = connect(fleet)
    fleet.update_tenants()
    versions[TenantId("acme")] = 2
    fleet.update_tenants()
    first, second = [sent for sent in link.sent if isinstance(sent, Warm)]
    assert [made.salts for made in first.prefixes] == [
        (tenant_salt(SALT_KEY, TenantId("acme")),),
        (tenant_salt(SALT_KEY, TenantId("other")),),
    ]
    assert second.prefixes[0].salts == (tenant_salt(SALT_KEY, TenantId("acme"), 2),)
    assert second.prefixes[1:] == first.prefixes[1:]


def test_without_the_salt_key_nobody_is_told() -> None:
    fleet = fleet_with(pool(prefix("p", "acme")), salt_key=None)
    assert warms(connect(fleet)) == []
