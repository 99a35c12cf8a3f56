"""Notes placed requests in the tracker of hot prefixes, and fetches the token ids of hot ones in the background.

A request's own rendering has no ids, unless it is a named conversation's: the worker's plugin and the render cache give
keys alone, and arrays of ids are not parsed for nothing. So one request of those that share a prefix is rendered once
more, after it was placed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import Counter, Gauge

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.know.prompt_lookup import PromptLookup
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.hot_prefixes.hot_prefix import Line, WantedPrefix
from cachefleet_controlplane.hot_prefixes.tracker import HotPrefixes
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.cache_salts import Salter
from cachefleet_controlplane.routing.decision import Knowledge
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_core.continuation import packed
from cachefleet_core.engine.engine_arguments import keeps_blocks
from cachefleet_core.tenancy import DEFAULT_TENANT, TenantId
from cachefleet_runtime.tasks import BackgroundTasks

logger = logging.getLogger(__name__)

FETCHES: Final = 2
"""Prompts being rendered once more at the same time, at most."""
FETCH_SECONDS: Final = 1.0
"""Least time between two fetches: bounds their cost, however many prefixes are shared."""
_SHARED: Final = TenantId(DEFAULT_TENANT)


class HotObserver:
    """Notes placed requests in ``hot``; ``close`` cancels its fetches."""

    def __init__(
        self,
        hot: HotPrefixes,
        lookup: PromptLookup,
        fleet: Fleet,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hot = hot
        self._lookup = lookup
        self._fleet = fleet
        self._clock = clock
        self._fetched_at = float("-inf")
        self._fetches = Counter(
            "cachefleet_hot_prefix_fetches", "Ids of hot prefixes asked for", ["outcome"], registry=metrics.registry
        )
        self._tasks = BackgroundTasks("fetching the ids of a hot prefix", failed=self._fetches.labels("failed").inc)
        known = Gauge("cachefleet_hot_prefixes", "Prefixes that requests share", registry=metrics.registry)
        known.set_function(lambda: len(hot))
        size = Gauge("cachefleet_hot_prefix_bytes", "Their ids and keys", registry=metrics.registry)
        size.set_function(lambda: hot.size)

    def note(self, request: Request) -> None:
        """Note a placed request, and start a fetch if its prefix needs one; never waits."""
        prompt = request.prompt
        if prompt.knowledge is not Knowledge.EXACT or request.info.bypass is not None or request.model.is_adapter:
            return  # ids alone would not warm a prompt with media, nor an adapter's
        if not any(keeps_blocks(pool.spec) for pool in request.model.declared):
            return
        now = self._clock()
        may = len(self._tasks) < FETCHES and now - self._fetched_at >= FETCH_SECONDS
        wanted = self._hot.note(self._line(request), prompt.keys, now, fetch=may)
        if wanted is None:
            return
        if ids := self._ids(wanted, prompt.keys, request):
            self._learn(wanted, ids)
            return
        self._fetched_at = now
        again = Request(request.info, request.model, request.tenant, keep_ids=True)
        self._tasks.start(self._fetch(wanted, prompt.keys, again))

    def served(self, keys: bytes, blocks: int) -> None:
        """Note that of a prompt with these packed keys so many of the first blocks came from a cache."""
        self._hot.served(keys, blocks)

    def update_tenants(self, tenants: Mapping[TenantId, TenantRecord], salter: Salter) -> None:
        """Drop prefixes of tenants and models that are gone, and those under an outdated salt."""
        models = {f"{model.namespace}/{model.upstream}": model for model in self._fleet.models()}

        def valid(line: Line) -> bool:
            model, tenant = models.get(line.model), tenants.get(line.tenant)
            if model is None or (tenant is None and line.tenant != DEFAULT_TENANT):
                return False
            version = 1 if tenant is None else tenant.salt_version
            return salter.salt(model.declared, line.tenant, version) == line.salt

        self._hot.keep(valid)

    async def close(self) -> None:
        """Cancel the fetches, and wait for their ends."""
        self._tasks.cancel()
        await self._tasks.settled()

    def _line(self, request: Request) -> Line:
        model = request.model
        tenant = request.tenant.name if request.salt else _SHARED
        contract = self._fleet.render_facts(model.name).contract
        return Line(f"{model.namespace}/{model.upstream}", contract, tenant, request.salt)

    async def _fetch(self, wanted: WantedPrefix, keys: bytes, request: Request) -> None:
        try:
            again = await self._lookup.complete(request)
        except ApiError:
            self._fetches.labels("failed").inc()
            return
        self._learn(wanted, self._ids(wanted, keys, again))

    def _learn(self, wanted: WantedPrefix, ids: bytes) -> None:
        self._fetches.labels("learnt" if ids else "failed").inc()
        self._hot.learn(wanted.key, ids)

    def _ids(self, wanted: WantedPrefix, keys: bytes, request: Request) -> bytes:
        """The prefix's ids as little-endian u32, with those that its last key looks ahead to.

        b"" where the rendering has other keys than ``keys``, or too few ids.
        """
        prompt = request.rendering.prompt
        if prompt.keys != keys or prompt.ids is None:
            return b""
        lookahead = self._fleet.render_facts(request.model.name).lookahead
        tokens = wanted.blocks * prompt.block_size + lookahead
        return bytes(packed(prompt.ids[:tokens])) if len(prompt.ids) >= tokens else b""
