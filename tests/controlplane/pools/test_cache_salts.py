"""Whose requests carry which salt."""

from cachefleet_controlplane.pools.cache_salts import MAX_REMEMBERED, Salter
from cachefleet_core.tenancy import TenantId, tenant_salt
from tests.controlplane.gateway.harness import pool

SALT_KEY = b"s" * 32
ACME = TenantId("acme")


def test_each_tenant_and_version_has_its_own_and_the_first_is_what_it_always_was() -> None:
    salter = Salter(SALT_KEY)
    first, second = salter.salt([pool()], ACME), salter.salt([pool()], ACME, 2)
    assert (first, second) == (tenant_salt(SALT_KEY, ACME), tenant_salt(SALT_KEY, ACME, 2))
    assert salter.salt([pool()], ACME, 1) == first
    assert salter.salt([pool()], TenantId("umbrella")) not in {first, second}


def test_where_all_pools_share_there_is_none() -> None:
    shared = pool(isolation="Shared")
    assert Salter(SALT_KEY).salt([shared], ACME, 2) == ""
    assert Salter(SALT_KEY).salt([shared, pool()], ACME, 2) == tenant_salt(SALT_KEY, ACME, 2)


def test_what_is_forgotten_is_made_again() -> None:
    salter, pools = Salter(SALT_KEY), [pool()]
    before = salter.salt(pools, ACME)
    for number in range(MAX_REMEMBERED + 1):
        salter.salt(pools, TenantId(f"t{number}"))
    assert salter.salt(pools, ACME) == before
