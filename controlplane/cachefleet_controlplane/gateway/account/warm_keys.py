"""The block keys of the warm prefixes that pools declare, to tell which hot prefixes are among them.

They are rendered as a request with their messages would be: once for each generation of a pool and salt of a tenant, in
the background, when somebody asks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.admit.model_lookup import find_model
from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.know.prompt_lookup import PromptLookup
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_core.engine.engine_arguments import keeps_blocks
from cachefleet_core.pool.policy import WarmPrefix
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.tenancy import DEFAULT_TENANT, TenantId
from cachefleet_runtime.tasks import BackgroundTasks

logger = logging.getLogger(__name__)

MAX_PREFIXES: Final = 64
"""Declared prefixes that are looked at, each under each salt."""
WAIT_SECONDS: Final = 1.0
"""How long somebody who asks waits for renderings."""
RETRY_SECONDS: Final = 60.0
"""Pause before prefixes that could not be rendered are tried again."""


@dataclass(frozen=True, slots=True)
class _Declared:
    """One warm prefix under one tenant's salt, as of one generation of its pool."""

    pool: str
    uid: str
    generation: int
    name: str
    tenant: TenantId
    salt_version: int
    contract: str


class WarmKeys:
    """Renders and keeps keys; ``salt_version`` is each tenant's at present. ``close`` it at the end."""

    def __init__(
        self,
        fleet: Fleet,
        lookup: PromptLookup,
        salt_version: Callable[[TenantId], int],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._lookup = lookup
        self._salt_version = salt_version
        self._clock = clock
        self._keys: dict[_Declared, bytes] = {}
        self._tried_at = float("-inf")
        self._tasks = BackgroundTasks("rendering warm prefixes", failed=lambda: None)

    async def all(self) -> list[bytes]:
        """The packed keys of all declared warm prefixes, as far as they are known within WAIT_SECONDS."""
        declared = dict(self._declared())
        self._keys = {one: keys for one, keys in self._keys.items() if one in declared}
        missing = {one: prefix for one, prefix in declared.items() if one not in self._keys}
        if missing and not self._tasks and self._clock() - self._tried_at >= RETRY_SECONDS:
            self._tried_at = self._clock()
            self._tasks.start(self._render(missing))
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                await self._tasks.settled()
        return list(self._keys.values())

    async def close(self) -> None:
        """End renderings under way."""
        self._tasks.cancel()
        await self._tasks.settled()

    def _declared(self) -> Iterator[tuple[_Declared, tuple[str, WarmPrefix]]]:
        pools = [(model.name, pool) for model in self._fleet.models() for pool in model.declared]
        found = (each for model, pool in pools if keeps_blocks(pool.spec) for each in self._of_pool(model, pool))
        for _, each in zip(range(MAX_PREFIXES), found, strict=False):
            yield each

    def _of_pool(self, model: str, pool: PrefixCachePool) -> Iterator[tuple[_Declared, tuple[str, WarmPrefix]]]:
        meta, contract = pool.metadata, self._fleet.render_facts(model).contract
        for prefix in pool.spec.prefix_cache.warm_prefixes:
            for name in prefix.tenants or (DEFAULT_TENANT,):
                tenant = TenantId(name)
                version = self._salt_version(tenant)
                yield (
                    _Declared(pool.key, meta.uid, meta.generation, prefix.name, tenant, version, contract),
                    (model, prefix),
                )

    async def _render(self, wanted: dict[_Declared, tuple[str, WarmPrefix]]) -> None:
        for one, (model, prefix) in wanted.items():
            messages = [{"role": message.role.value, "content": message.content} for message in prefix.messages]
            body = msgspec.json.encode({"model": model, "messages": messages, "max_tokens": 1})
            try:
                tenant = TenantRecord(name=one.tenant, salt_version=one.salt_version)
                served = find_model(self._fleet, model)
                request = await self._lookup.complete(Request(parse(body, Endpoint.CHAT), served, tenant))
            except ApiError as error:
                logger.info("a warm prefix could not be rendered: %s", error, extra={"pool": one.pool})
                continue
            if request.prompt.keys:
                self._keys[one] = request.prompt.keys
