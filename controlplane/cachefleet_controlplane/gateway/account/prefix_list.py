"""The hottest prefixes as people are shown them: who holds them, what they save, which are warm by declaration."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Final

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.account.warm_keys import WarmKeys
from cachefleet_controlplane.hot_prefixes.hot_prefix import ShownPrefix, TrackedPrefix
from cachefleet_controlplane.hot_prefixes.tracker import HotPrefixes
from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES
from cachefleet_core.tenancy import TenantId

MAX_HOLDERS: Final = 16
"""Workers named with a prefix."""
_NAME_BYTES: Final = 8
_PERSON: Final = b"hot prefix"
"""Sets these hashes apart from all others under the same key."""


class PrefixList:
    """Lists prefixes of ``hot``; ``name_key`` is secret, so that names tell nothing of what a prefix says."""

    def __init__(
        self,
        hot: HotPrefixes,
        fleet: Fleet,
        warm: WarmKeys,
        *,
        name_key: bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hot = hot
        self._fleet = fleet
        self._warm = warm
        self._name_key = name_key
        self._clock = clock

    async def __call__(self, pool: str | None, most: int) -> Sequence[ShownPrefix]:
        """At most so many, hottest first: of the model of a pool ("namespace/name"), or of all models."""
        models = {key: f"{one.namespace}/{one.upstream}" for one in self._fleet.models() for key in one.pools}
        wanted = None if pool is None else models.get(pool, "")
        found = (one for one in self._hot.tracked(self._clock()) if wanted in {None, one.line.model})
        warm = await self._warm.all()
        return [self._shown(one, warm) for one in islice(found, most)]

    async def close(self) -> None:
        """End what goes on in the background."""
        await self._warm.close()

    def _shown(self, prefix: TrackedPrefix, warm: Sequence[bytes]) -> ShownPrefix:
        end = prefix.blocks * KEY_BYTES
        size = self._fleet.render_facts(prefix.line.model).block_size
        holders = self._fleet.holders.of(prefix.line.model, prefix.first, prefix.last)
        return ShownPrefix(
            name=blake2b(prefix.last, key=self._name_key, person=_PERSON, digest_size=_NAME_BYTES).hexdigest(),
            tenant=prefix.line.tenant if prefix.line.salt else TenantId(""),
            model=prefix.line.model,
            tokens=prefix.blocks * size,
            requests=prefix.requests,
            heat=round(prefix.heat, 3),
            saved_tokens=prefix.saved_blocks * size,
            holders=tuple(holders[:MAX_HOLDERS]),
            holder_count=len(holders),
            warm=any(keys[end - KEY_BYTES : end] == prefix.last for keys in warm),
        )
