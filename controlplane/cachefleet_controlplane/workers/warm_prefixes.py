"""The standing Warm frame of a pool: its warm prefixes under the salts of their tenants. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cachefleet_controlplane.pools.cache_salts import Salter
from cachefleet_core.engine.engine_arguments import keeps_blocks
from cachefleet_core.pool.policy import WarmPrefix
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.report_frames import MAX_FRAME_BYTES, Warm
from cachefleet_core.tenancy import DEFAULT_TENANT, TenantId
from cachefleet_core.warmth import Prefix

logger = logging.getLogger(__name__)

MAX_MESSAGES_BYTES: Final = 1024 * 1024
"""The protocol's bound of one prefix."""
MAX_BYTES: Final = MAX_FRAME_BYTES - 4096
"""Bytes of all prefixes in one frame; the rest is for the frame around them."""

Inputs = tuple[object, ...]


class Warming:
    """Builds frames and keeps them until their inputs change; ``version`` gives that of a tenant's salt."""

    def __init__(self, salter: Salter, version: Callable[[TenantId], int] = lambda _: 1) -> None:
        self._salter = salter
        self._version = version
        self._made: dict[str, tuple[Inputs, Warm]] = {}

    def frame(self, pool: PrefixCachePool, fleet: Sequence[PrefixCachePool]) -> Warm:
        """The standing Warm of a pool in its fleet; the same object as long as its inputs are equal."""
        salted = bool(self._salter.salt(fleet, DEFAULT_TENANT))
        meta, kept = pool.metadata, keeps_blocks(pool.spec)
        prefixes = pool.spec.prefix_cache.warm_prefixes
        versions = tuple(self._version(tenant) for prefix in prefixes for tenant in _tenants(prefix))
        inputs = (meta.uid, meta.generation, kept, salted, prefixes, versions)
        made = self._made.get(pool.key)
        if made is None or made[0] != inputs:
            made = self._made[pool.key] = (inputs, self._make(pool, fleet) if kept else _warm(pool, ()))
        return made[1]

    def keep(self, keys: frozenset[str]) -> None:
        """Drop the frames of all other pools."""
        self._made = {key: made for key, made in self._made.items() if key in keys}

    def _make(self, pool: PrefixCachePool, fleet: Sequence[PrefixCachePool]) -> Warm:
        prefixes: list[Prefix] = []
        left_out, room = [], MAX_BYTES
        for wanted in pool.spec.prefix_cache.warm_prefixes:
            prefix = self._prefix(wanted, fleet)
            size = len(msgspec.msgpack.encode(prefix))
            if size > room or len(prefix.messages) > MAX_MESSAGES_BYTES:
                left_out.append(wanted.name)
                continue
            room -= size
            prefixes.append(prefix)
        if left_out:
            logger.warning("warm prefixes too long to be sent", extra={"pool": pool.key, "prefixes": left_out})
        return _warm(pool, tuple(prefixes))

    def _prefix(self, wanted: WarmPrefix, fleet: Sequence[PrefixCachePool]) -> Prefix:
        given = (self._salter.salt(fleet, tenant, self._version(tenant)) for tenant in _tenants(wanted))
        salts = tuple(salt for salt in given if salt)
        messages = [{"role": message.role.value, "content": message.content} for message in wanted.messages]
        return Prefix(name=wanted.name, messages=msgspec.json.encode(messages), salts=salts)


def _tenants(prefix: WarmPrefix) -> list[TenantId]:
    return [TenantId(tenant) for tenant in prefix.tenants] or [DEFAULT_TENANT]


def _warm(pool: PrefixCachePool, prefixes: tuple[Prefix, ...]) -> Warm:
    return Warm(prefixes=prefixes, standing=True, uid=pool.metadata.uid, generation=pool.metadata.generation)
