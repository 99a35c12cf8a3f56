"""Two tenants with a key each, and how they ask a gateway."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from cachefleet_controlplane.store.tenant_records import KeyRecord, Tenancy, TenantRecord
from cachefleet_controlplane.tenants.directory import Directory
from cachefleet_core.tenancy import TenantId, api_key_hash, new_api_key
from tests.controlplane.gateway.harness import FLEET_KEY, Front, chat
from tests.fakes.engine import FakeEngine

CHAT = "/v1/chat/completions"
ACME = TenantRecord(name=TenantId("acme"))
UMBRELLA = TenantRecord(name=TenantId("umbrella"), salt_version=2)
KEYS = {tenant.name: new_api_key(bytes([number]) * 32) for number, tenant in enumerate((ACME, UMBRELLA))}


def record(tenant: TenantRecord, **changes: Any) -> KeyRecord:
    hashed = api_key_hash(FLEET_KEY.api_key_hash_key, KEYS[tenant.name].encode())
    own: dict[str, Any] = {"id": tenant.name, "tenant": tenant.name, "hash": hashed, "hint": "cf-", "created": 0.0}
    return KeyRecord(**(own | changes))


def directory(*tenants: TenantRecord, keys: Iterable[KeyRecord] | None = None, required: bool = False) -> Directory:
    keys = [record(tenant) for tenant in tenants] if keys is None else keys
    return Directory.of(Tenancy("s", 1, tenants, tuple(keys)), required=required)


async def ask(gate: Front, tenant: TenantRecord | None, **changes: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
    headers = {} if tenant is None else {"authorization": f"Bearer {KEYS[tenant.name]}"}
    status, told, body = await gate.post(CHAT, chat("hello there", **changes), **headers)
    return status, told, {} if changes.get("stream") else json.loads(body)


def salts(worker: FakeEngine) -> set[str]:
    bodies = [json.loads(seen.body) for seen in worker.requests if seen.path == CHAT]
    return {body.get("cache_salt", "") for body in bodies}
