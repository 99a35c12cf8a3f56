"""Canaries (A3, A21): a share of verified prefixes, and of prompts by handle, is compared with a plain full render.

They run in the background, a few at a time. A mismatch is a defect of a cache, a plugin or a renderer: the profile's
certificate is revoked, so that no handle is sent for it until it is examined again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Final

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.converse.certification.certificates import Certificates
from cachefleet_controlplane.gateway.converse.certification.plain_render import PlainRenderer
from cachefleet_controlplane.gateway.converse.checkpoint import KEY_BYTES, Checkpoint
from cachefleet_controlplane.gateway.converse.conversation_metrics import ContinuationMetrics
from cachefleet_controlplane.gateway.converse.turn import NamedTurn
from cachefleet_controlplane.gateway.converse.turn_plan import TurnPlan
from cachefleet_controlplane.gateway.handles.handles import ByHandle
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.gateway.request.resume_eligibility import unmarked
from cachefleet_controlplane.workers.render_profiles import profile_of
from cachefleet_core.block_keys import BlockKeyer
from cachefleet_core.continuation import prefix_hash
from cachefleet_runtime.tasks import BackgroundTasks

logger = logging.getLogger(__name__)

AT_ONCE: Final = 4
"""Canaries under way, at most; a plan beyond that is not sampled."""
MATCH: Final = "match"
MISMATCH: Final = "mismatch"
UNKNOWN: Final = "unknown"
REASON: Final = "a canary found another prompt than a plain render makes"


class Canaries:
    """Samples plans: ``ratio`` of the verified ones are compared; ``chance`` returns numbers from 0 to below 1."""

    def __init__(
        self,
        fleet: Fleet,
        plain: PlainRenderer,
        certificates: Certificates,
        *,
        metrics: ContinuationMetrics,
        ratio: float,
        chance: Callable[[], float] = random.random,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._plain = plain
        self._certificates = certificates
        self._metrics = metrics
        self._ratio = ratio
        self._chance = chance
        self._wall_clock = wall_clock
        self._under_way = BackgroundTasks("canary", failed=lambda: metrics.canary(UNKNOWN))

    def __call__(self, turn: NamedTurn, plan: TurnPlan, request: Request) -> None:
        """Sample a plan; never waits."""
        remembered = turn.thread.checkpoint
        if remembered is None or not plan.verified or len(self._under_way) >= AT_ONCE:
            return
        if self._chance() < self._ratio:
            self._under_way.start(self._compare(remembered, request))

    def rendered_by_handle(self, by_handle: ByHandle) -> None:
        """Sample a request that a worker has rendered by handle; never waits."""
        if len(self._under_way) < AT_ONCE and self._chance() < self._ratio:
            self._under_way.start(self._compare_whole(by_handle))

    async def settled(self) -> None:
        """Wait for the canaries under way."""
        await self._under_way.settled()

    def close(self) -> None:
        """Cancel the canaries under way."""
        self._under_way.cancel()

    async def _compare_whole(self, by_handle: ByHandle) -> None:
        """Whether the prompt is the one that a plain render makes of the whole body."""
        workers = self._fleet.renderers(by_handle.model, 1)
        ids = await self._plain.rendered(workers[0], by_handle.info.endpoint, by_handle.body) if workers else None
        if ids is None:
            self._metrics.canary(UNKNOWN)
            return
        same = len(ids) == by_handle.kept.prefix_token_count and prefix_hash(ids) == by_handle.kept.prefix_hash
        self._metrics.canary(MATCH if same else MISMATCH)
        if not same:
            await self._withdraw(by_handle.model)

    async def _compare(self, remembered: Checkpoint, request: Request) -> None:
        result = await self._result(remembered, request)
        self._metrics.canary(result)
        if result == MISMATCH:
            await self._withdraw(request.model.name)

    async def _result(self, remembered: Checkpoint, request: Request) -> str:
        workers = self._fleet.renderers(request.model.name, 1)
        body = unmarked(request.body)
        ids = await self._plain.rendered(workers[0], request.info.endpoint, body) if workers else None
        if ids is None:
            return UNKNOWN
        prefix = ids[: remembered.prefix_tokens]
        if len(ids) <= remembered.prefix_tokens:
            return MISMATCH
        if remembered.prefix_hash:
            return MATCH if prefix_hash(prefix) == remembered.prefix_hash else MISMATCH
        keyer = self._fleet.keyer(request.model.name, salt=request.salt)
        return UNKNOWN if keyer is None else _by_keys(remembered, keyer.packed_keys(prefix), keyer)

    async def _withdraw(self, model: str) -> None:
        profiles = {profile_of(hello) for hello in self._fleet.announced(model)}
        revoked = await self._certificates.revoke(profiles, reason=REASON, at=self._wall_clock())
        logger.error("%s", REASON, extra={"model": model, "certificates_withdrawn": len(revoked)})


def _by_keys(remembered: Checkpoint, keys: bytes, keyer: BlockKeyer) -> str:
    end = KEY_BYTES * keyer.blocks(remembered.prefix_tokens)
    known = remembered.keys[:end]
    return MATCH if keys[: len(known)] == known else MISMATCH
