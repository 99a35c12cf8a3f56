"""Which shares of the idle cache workers are told, by digests of salts alone, and what tenants are shown to have."""

from __future__ import annotations

from typing import Any

import msgspec

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.fleet.fleet_metrics import tenant_idle
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.tenants.tenant_metrics import MAX_TENANTS, OTHER
from cachefleet_controlplane.workers.views import OTHERS, IdleCache
from cachefleet_core.pool.spec import PrefixCachePool, read_pool
from cachefleet_core.report_fields import SaltShare
from cachefleet_core.report_frames import Policy, decode_down, encode
from cachefleet_core.tenancy import TenantId, salt_digest, tenant_salt
from tests.controlplane.fleets import FakeLink, view
from tests.controlplane.frames import hello, state
from tests.core.invalid_pools import VALID, merged

SALT_KEY = b"s" * 32


def pool(generation: int = 1, contracts: tuple[dict[str, Any], ...] = (), **shares: Any) -> PrefixCachePool:
    document = merged(
        VALID, {"metadata": {"name": "demo", "namespace": "default", "uid": "u", "generation": generation}}
    )
    return read_pool(merged(document, {"spec": {"tenancy": {"cacheShare": shares, "contracts": list(contracts)}}}))


def digest(tenant: str, version: int = 1) -> str:
    return salt_digest(tenant_salt(SALT_KEY, TenantId(tenant), version))


class Known:
    """Tenants and the versions of their salts."""

    def __init__(self) -> None:
        self.versions = {TenantId("acme"): 1, TenantId("umbrella"): 1}

    def version(self, tenant: TenantId) -> int:
        return self.versions.get(tenant, 1)

    def names(self) -> list[TenantId]:
        return list(self.versions)


def fleet(known: Known, *pools: PrefixCachePool) -> Fleet:
    made = Fleet(BlockIndex(), index_key=b"i" * 32, salt_key=SALT_KEY, salt_version=known.version, tenants=known.names)
    made.update_pools([view(one) for one in pools])
    return made


def policies(link: FakeLink) -> list[Policy]:
    return [frame for frame in link.sent if isinstance(frame, Policy)]


def test_shares_are_told_by_digest_and_told_again_when_a_salt_changes() -> None:
    known, link = Known(), FakeLink()
    live = fleet(known, pool(default=0.5, tenants=[{"name": "acme", "share": 0.25}]))
    live.hello(live.connect(link), hello())
    [told] = policies(link)
    assert (told.cache_share, told.keep_share) == (0.5, 0.5)
    assert told.tenant_shares == (SaltShare(salt=digest("acme"), share=0.25),)
    assert decode_down(encode(told)) == told
    assert b"acme" not in encode(told)
    assert tenant_salt(SALT_KEY, TenantId("acme")).encode() not in encode(told)
    live.update_tenants()
    assert len(policies(link)) == 1
    known.versions[TenantId("acme")] = 2
    live.update_tenants()
    assert policies(link)[-1] == msgspec.structs.replace(
        told, tenant_shares=(SaltShare(salt=digest("acme", 2), share=0.25),)
    )


def test_a_changed_spec_is_told_once_with_its_shares() -> None:
    known, link = Known(), FakeLink()
    live = fleet(known, pool())
    live.hello(live.connect(link), hello())
    live.update_pools([view(pool(2, tenants=[{"name": "acme", "share": 0.25}]))])
    assert [(one.generation, len(one.tenant_shares or ())) for one in policies(link)] == [(1, 0), (2, 1)]


def test_contracts_are_told_as_shares_that_are_guaranteed() -> None:
    known, link = Known(), FakeLink()
    contract = {"tenant": "umbrella", "share": 0.5, "retentionSeconds": 60}
    live = fleet(known, pool(contracts=(contract,), tenants=[{"name": "acme", "share": 0.25}]))
    live.hello(live.connect(link), hello())
    [told] = policies(link)
    promised = SaltShare(salt=digest("umbrella"), share=0.5, guaranteed=True, retention_seconds=60)
    assert told.tenant_shares == (promised, SaltShare(salt=digest("acme"), share=0.25))
    assert decode_down(encode(told)) == told


def test_what_tenants_have_is_shown_by_name_the_largest_first() -> None:
    known, link = Known(), FakeLink()
    live = fleet(known, pool(default=0.5, tenants=[{"name": "acme", "share": 0.25}]))
    connection = live.connect(link)
    live.hello(connection, msgspec.structs.replace(hello(), block_bytes=1 << 19))
    idle = {digest("acme"): 3, digest("umbrella"): 8, digest("umbrella", 9): 2, digest("default"): 1}
    live.receive(connection, msgspec.structs.replace(state(0), blocks_idle=14, idle_by_salt=idle))
    assert live.view().tenants == (
        IdleCache("default/demo", "umbrella", 0.5, 8, 4),
        IdleCache("default/demo", "acme", 0.25, 3, 2),
        IdleCache("default/demo", OTHERS, 0.5, 2, 1),
        IdleCache("default/demo", "default", 0.5, 1, 1),
    )


def test_a_new_tenants_blocks_get_its_name() -> None:
    known, link = Known(), FakeLink()
    live = fleet(known, pool())
    connection = live.connect(link)
    live.hello(connection, hello())
    live.receive(connection, msgspec.structs.replace(state(0), blocks_idle=3, idle_by_salt={digest("new"): 3}))
    assert [one.tenant for one in live.view().tenants] == [OTHERS]
    known.versions[TenantId("new")] = 1
    live.update_tenants()
    assert [one.tenant for one in live.view().tenants] == ["new"]


def test_a_metric_names_a_bounded_number_of_tenants_in_a_pool() -> None:
    told = [IdleCache("p", f"t{number}", 1.0, 2, 1) for number in range(MAX_TENANTS + 3)]
    shown = dict(tenant_idle([*told, IdleCache("p", OTHERS, 1.0, 1, 1), IdleCache("q", "t0", 1.0, 5, 1)]))
    assert len(shown) == MAX_TENANTS + 2
    assert shown["p", OTHER] == 7
    assert shown["q", "t0"] == 5
